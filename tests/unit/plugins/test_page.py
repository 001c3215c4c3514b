"""The routes of the page: nobody without a right, nothing from outside, no path that leaves its
folder.
"""

import pytest
from fastapi import HTTPException
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from mailslice.airflow.queue_page import QueuePage, docs_path, safe_path
from mailslice.model.errors import BadInput, StoreUnavailable
from mailslice.model.settings import DutySettings, Settings

GOOD = {"queues": [{"queue": "<b>spool"}], "at": "2026-11-21T12:00:00Z"}


class Double:
    def queues(self):
        return GOOD

    def size(self, queue):
        if queue == "down":
            raise StoreUnavailable("Cassandra at 127.0.0.1:9042 does not answer")
        raise BadInput(f"queue name {queue!r} is not allowed")

    def reports(self, duty, dag_run):
        return [{"duty": duty, "dagRun": dag_run}]

    def picture(self, queue, run):
        return b"<svg/>" if run == "r1" else None

    def docs(self, path):
        return (b"<p>docs</p>", "text/html; charset=utf-8") if path == "index.html" else None


@pytest.fixture
def client(plugin, monkeypatch):
    """A user who may read."""
    monkeypatch.setattr(plugin, "page", Double())
    monkeypatch.setitem(plugin.app.dependency_overrides, plugin.may_read, lambda: None)
    return TestClient(plugin.app, raise_server_exceptions=False)


@pytest.fixture
def refused(plugin, monkeypatch):
    """A user who is known, but has no right."""

    def no():
        raise HTTPException(403, "Forbidden")

    monkeypatch.setattr(plugin, "page", Double())
    monkeypatch.setitem(plugin.app.dependency_overrides, plugin.may_read, no)
    return TestClient(plugin.app)


def routes(plugin):
    return [route for route in plugin.app.routes if isinstance(route, APIRoute)]


def test_every_route_asks_airflow_whether_the_user_may_read_the_dag(plugin):
    assert len(routes(plugin)) == len(plugin.app.routes) >= 7
    for route in routes(plugin):
        assert plugin.may_read in [
            dependency.call for dependency in route.dependant.dependencies
        ], route.path
    cells = dict(
        zip(
            plugin.may_read.__code__.co_freevars,
            (cell.cell_contents for cell in plugin.may_read.__closure__),
            strict=True,
        )
    )
    assert (cells["method"], cells["param_dag_id"]) == ("GET", "queue_cleanup")


def test_the_ids_of_our_dags_are_told_without_a_store(client, plugin, monkeypatch):
    monkeypatch.setattr(plugin, "page", None)
    dags = client.get("/api/dags").json()
    assert len(dags) == 10
    assert all(dag == f"{plugin.PREFIX}{duty}" for duty, dag in dags.items())


def test_no_route_of_ours_writes(plugin):
    assert {method for route in routes(plugin) for method in route.methods} == {"GET"}


def test_nobody_sees_anything_without_the_right(plugin, refused):
    for path in (
        "/",
        "/static/page.js",
        "/api/queues",
        "/api/dags",
        "/api/size?queue=spool",
        "/api/reports?duty=d&dag_run=r",
        "/plot?queue=q&run=r1",
        "/docs/index.html",
    ):
        assert refused.get(path).status_code == 403, path


def test_interactive_docs_of_the_app_are_off(client):
    assert [client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [
        404,
        404,
        404,
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json"},
        {"content-type": "application/json", "origin": "http://evil.example"},
        {"content-type": "application/json", "origin": "null"},
        {"content-type": "text/plain", "origin": "http://testserver"},
        {"content-type": "application/x-www-form-urlencoded", "origin": "http://testserver"},
    ],
)
def test_a_write_from_elsewhere_or_without_json_is_refused_before_any_route(client, headers):
    assert client.post("/api/queues", headers=headers, content=b"{}").status_code == 403


def test_a_write_of_this_site_finds_no_route(client):
    headers = {"content-type": "application/json; charset=utf-8", "origin": "http://testserver"}
    assert client.post("/api/queues", headers=headers, content=b"{}").status_code == 405


def test_every_answer_has_a_policy_that_lets_nothing_in_from_outside(client):
    for path in (
        "/",
        "/static/page.css",
        "/api/queues",
        "/plot?queue=spool&run=r1",
        "/docs/index.html",
        "/docs/none.html",
    ):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "http" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_data_docs_and_pictures_run_no_script(client):
    for path in ("/docs/index.html", "/plot?queue=spool&run=r1"):
        policy = client.get(path).headers["content-security-policy"]
        assert "sandbox" in policy
        assert "script-src" not in policy
        assert "allow-scripts" not in policy


def test_the_page_is_whole_without_anything_from_outside(client):
    page, script, style = (
        client.get("/").text,
        client.get("/static/page.js").text,
        client.get("/static/page.css").text,
    )
    assert "static/page.js" in page
    for text in (page, script, style):
        assert "//" not in text.replace("// ", "").replace("/** ", "") or "http" not in text
    assert 'href="/' not in page
    assert 'src="/' not in page


def test_the_script_puts_no_html_into_the_page(client):
    script = client.get("/static/page.js").text
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert way not in script


def test_queues_come_as_json_which_no_browser_takes_for_html(client):
    answer = client.get("/api/queues")
    assert answer.json() == GOOD
    assert answer.headers["content-type"] == "application/json"


def test_a_store_that_is_down_is_named_with_503_and_wrong_input_with_400(client):
    down, bad = client.get("/api/size?queue=down"), client.get("/api/size?queue=x")
    assert (down.status_code, down.json()) == (
        503,
        {"detail": "Cassandra at 127.0.0.1:9042 does not answer"},
    )
    assert (bad.status_code, bad.json()) == (400, {"detail": "queue name 'x' is not allowed"})


def test_only_the_two_files_of_the_page_are_static(client):
    assert client.get("/static/page.css").headers["content-type"].startswith("text/css")
    for name in ("index.html", "..%2fpage_plugin.py", "page_plugin.py"):
        assert client.get(f"/static/{name}").status_code == 404


def test_the_view_is_in_the_side_bar_below_whatever_path_airflow_has(plugin):
    nav, tab = plugin.MailslicePlugin.external_views
    assert (nav["name"], nav["href"], nav["destination"]) == ("Mail queues", "mailslice/", "nav")
    assert (tab["href"], tab["destination"]) == ("mailslice/?dag={DAG_ID}&run={RUN_ID}", "dag_run")


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("index.html", True),
        ("gates/queue_cleanup-spool-r1-check.html", True),
        ("a/../b", False),
        ("../secret", False),
        ("..", False),
        ("a//b", False),
        ("/etc/passwd", False),
        ("a/./b", False),
        ("a\\..\\b", False),
        ("a\x00b", False),
        ("", False),
    ],
)
def test_a_path_of_data_docs_never_leaves_its_folder(path, good):
    assert safe_path(path) is good


@pytest.fixture
def page(tmp_path):
    (tmp_path / "data_docs" / "gates").mkdir(parents=True)
    (tmp_path / "data_docs" / "index.html").write_text("<p>all</p>")
    (tmp_path / "data_docs" / "gates" / "g.json").write_text("{}")
    (tmp_path / "data_docs" / "tool.sh").write_text("no")
    (tmp_path / "secret.html").write_text("secret")
    (tmp_path / "data_docs" / "link.html").symlink_to(tmp_path / "secret.html")
    return QueuePage(Settings(duty=DutySettings(artifacts=str(tmp_path))))


def test_data_docs_are_served_with_their_media_type(page):
    assert page.docs("index.html") == (b"<p>all</p>", "text/html; charset=utf-8")
    assert page.docs("gates/g.json") == (b"{}", "application/json")


@pytest.mark.parametrize(
    "path", ["../secret.html", "link.html", "tool.sh", "missing.html", "gates"]
)
def test_nothing_else_is_served(page, path):
    assert page.docs(path) is None


def test_a_picture_is_asked_for_by_a_run_id_that_cannot_be_a_path(page):
    with pytest.raises(BadInput, match="run id"):
        page.picture("spool", "../../x")
    assert page.picture("spool", "r1") is None


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ("file:///srv/a/data_docs/gates/x.html", "gates/x.html"),
        ("s3a://bucket/p/data_docs/gates/x.html", "gates/x.html"),
        ("file:///srv/a/data_docs/gates/a%2B00.html", "gates/a+00.html"),
        ("s3a://bucket/data_docs/gates/a%2B00.html", "gates/a%2B00.html"),
        ("file:///srv/data_docs/%2e%2e/x", None),
        ("file:///srv/data_docs/../x", None),
        ("http://elsewhere/x.html", None),
        (None, None),
    ],
)
def test_links_to_data_docs_become_paths_of_the_page(link, path):
    assert docs_path(link) == path
