"""The cockpit as Airflow's plugin: each right is a rule of Airflow's auth manager."""

import importlib.util
import re
from datetime import UTC, datetime

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from mailslice.airflow.page_rights import rights_of
from mailslice.cockpit.app import ROUTES
from mailslice.cockpit.rights import Right
from mailslice.webadmin.app import ROUTES as JAMES

TASK = "0b5a7d56-5c1c-4f7b-9c1e-3f0c2d5a9b11"


class User:
    def __init__(self, role):
        self.role = role

    def get_name(self):
        return f"the {self.role}"


ROLES = {
    "viewer": {Right.LOOK},
    "user": {Right.LOOK, Right.PREVIEW},
    "op": {Right.LOOK, Right.PREVIEW, Right.ACT},
    "admin": set(Right),
}


@pytest.fixture
def james(plugin, simple_auth_manager, monkeypatch):
    """James' routes, and who asks: the cookie and the token of Airflow are not checked here."""
    from airflow.api_fastapi.core_api.security import get_user

    del simple_auth_manager
    monkeypatch.setitem(plugin.FIRST.james.dependency_overrides, get_user, lambda: User("admin"))
    return TestClient(plugin.FIRST.james)


def answers(plugin, right, user):
    """The status that a route of that right answers to a user of Airflow's simple auth manager."""
    from airflow.api_fastapi.core_api.security import get_user

    app = FastAPI()
    app.add_api_route("/", lambda: None, dependencies=[Depends(plugin.FIRST.guards[right])])
    app.dependency_overrides[get_user] = lambda: user
    return TestClient(app).get("/").status_code


@pytest.mark.parametrize("role", ROLES)
def test_each_role_has_the_rights_that_the_table_says(plugin, simple_auth_manager, role):
    del simple_auth_manager
    user = User(role)
    statuses = {right: answers(plugin, right, user) for right in Right}
    assert set(statuses.values()) <= {200, 403}
    assert {right for right, status in statuses.items() if status == 200} == ROLES[role]


def test_the_content_is_for_admins_who_may_act_on_these_queues(
    plugin, simple_auth_manager, monkeypatch
):
    """An auth manager with rights on each DAG: his role has the name, and not these DAGs."""
    monkeypatch.setattr(simple_auth_manager, "is_authorized_dag", lambda **_: False)
    assert answers(plugin, Right.CONTENT, User("admin")) == 403


@pytest.mark.parametrize("role", ROLES)
def test_the_page_shows_each_role_the_buttons_of_its_rights(plugin, simple_auth_manager, role):
    from airflow.api_fastapi.core_api.security import get_user

    del simple_auth_manager
    app = FastAPI()
    rights = Depends(rights_of(plugin.FIRST.guards))
    app.add_api_route("/", lambda may=rights: sorted(may))
    app.dependency_overrides[get_user] = lambda: User(role)
    assert TestClient(app).get("/").json() == sorted(ROLES[role])


def test_every_route_of_the_mounted_app_is_in_the_table(plugin):
    assert {route.path for route in plugin.FIRST.app.routes} == set(ROUTES)


def test_the_view_is_in_the_side_bar_below_whatever_path_airflow_has(plugin):
    nav, tab = plugin.MailslicePlugin.external_views
    assert (nav["name"], nav["href"], nav["destination"]) == ("Mail queues", "mailslice/", "nav")
    assert (tab["href"], tab["destination"]) == ("mailslice/?dag={DAG_ID}&run={RUN_ID}", "dag_run")


def test_james_routes_are_asked_before_the_page_and_are_all_in_their_table(plugin):
    james, page = plugin.MailslicePlugin.fastapi_apps
    assert (james["url_prefix"], page["url_prefix"]) == ("/mailslice/webadmin", "/mailslice")
    assert (james["app"], page["app"]) == (plugin.FIRST.james, plugin.FIRST.app)
    assert {
        (method, route.path) for route in plugin.FIRST.james.routes for method in route.methods
    } == {(method, path) for method, path, *_ in JAMES} | {("GET", "/openapi.json")}


@pytest.fixture
def runs(plugin, monkeypatch):
    """Airflow's runs, by hand: one of each DAG is at work. Gives what was started and ended."""
    done = []

    def start(dag, _conf, who, run=None):
        done.append((dag, who))
        return run

    def find(_dags, run):
        now = datetime(2026, 11, 27, tzinfo=UTC)
        conf = {"queues": ["spool"]}
        return plugin.runs.DagRunState(RUNS[run], run, "queued", conf, now, None, None, None)

    monkeypatch.setattr(plugin.runs, "start", start)
    monkeypatch.setattr(plugin.runs, "find", find)
    monkeypatch.setattr(plugin.runs, "fail", lambda one, _note: not done.append((one.dag, "end")))
    return done


RUNS = {TASK: "blob_gc", TASK.replace("0b", "0c"): "counter_repair"}
BLOBS = "/blobs?scope=unreferenced"
COUNTERS = "/mailboxes?task=RecomputeMailboxCounters"


@pytest.mark.parametrize(
    ("method", "path", "dag"),
    [
        ("DELETE", BLOBS, "blob_gc"),
        ("POST", COUNTERS, "counter_repair"),
        *(("DELETE", f"/tasks/{run}", dag) for run, dag in RUNS.items()),
    ],
)
def test_who_may_not_trigger_a_dag_neither_starts_nor_ends_its_tasks(
    james, runs, monkeypatch, method, path, dag
):
    """An auth manager with rights for single DAGs, such as FAB's."""
    from airflow.api_fastapi.app import get_auth_manager

    manager, denied = get_auth_manager(), {dag}
    allows = manager.is_authorized_dag

    def is_authorized_dag(*, method, user, access_entity=None, details=None):
        if method == "POST" and details is not None and details.id in denied:
            return False
        return allows(method=method, user=user, access_entity=access_entity, details=details)

    monkeypatch.setattr(manager, "is_authorized_dag", is_authorized_dag)
    headers = {"authorization": "Bearer token"}
    answer = james.request(method, path, headers=headers)
    assert (answer.status_code, runs) == (403, [])
    assert answer.json()["message"].endswith(f"needs the right to trigger the DAG {dag}")
    denied.clear()
    assert james.request(method, path, headers=headers).status_code in {201, 204}
    assert [one for one, _ in runs] == [dag]


@pytest.fixture
def two(plugin, simple_auth_manager, monkeypatch):
    """The module where MAILSLICE_CONNECTION names two deployments; an admin asks."""
    from airflow.api_fastapi.core_api.security import get_user

    del simple_auth_manager
    monkeypatch.setenv("MAILSLICE_CONNECTION", "eu_=mail_eu,us_=mail_us")
    spec = importlib.util.spec_from_file_location("page_of_two_deployments", plugin.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for page in module.PAGES.values():
        page.app.dependency_overrides[get_user] = lambda: User("admin")
    return module


def test_each_deployment_has_its_page_and_every_page_leads_to_the_others(two):
    assert [one["url_prefix"] for one in two.MailslicePlugin.fastapi_apps] == [
        *("/mailslice/webadmin", "/mailslice", "/mailslice-us_/webadmin", "/mailslice-us_")
    ]
    for prefix, page in two.PAGES.items():
        client = TestClient(page.app)
        assert client.get("/api/dags").json()["queue_cleanup"] == f"{prefix}queue_cleanup"
        text = client.get("/", params={"dag": "of_others", "run": "r"}).text
        addresses = re.findall(r'<a href="(\S+)" (aria-current="page")?>(.._)</a>', text)
        assert [(href, name, bool(current)) for href, current, name in addresses] == [
            ("../mailslice/", "eu_", prefix == "eu_"),
            ("../mailslice-us_/", "us_", prefix == "us_"),
        ]


def test_the_tab_of_a_run_leads_to_the_page_of_its_deployment(two):
    client = TestClient(two.FIRST.app, follow_redirects=False)
    query = "dag=us_queue_cleanup&run=manual__2026-11-23T10%3A00%3A00%2B00%3A00"
    answer = client.get(f"/?{query}")
    assert (answer.status_code, answer.headers["location"]) == (307, f"../mailslice-us_/?{query}")
    assert client.get("/?dag=us_other&run=r").status_code == 200


def test_without_a_login_james_routes_are_401_in_james_words(plugin, simple_auth_manager):
    del simple_auth_manager
    client = TestClient(plugin.FIRST.james)
    for method, path, *_ in [*JAMES, ("GET", "/openapi.json")]:
        words = {"authorization": "Bearer x.y.z"} if method != "GET" else {}
        answer = client.request(method, path.format(queue="spool", task=TASK), headers=words)
        assert answer.status_code in {401, 403}, path
        assert answer.json()["statusCode"] == answer.status_code


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"origin": "http://evil.example", "content-type": "application/json"}, 403),
        ({"origin": "http://testserver"}, 403),
        ({"origin": "http://testserver", "content-type": "text/plain"}, 403),
        ({"authorization": "Basic eDp5", "content-type": "text/plain"}, 403),
        ({"authorization": "Bearer "}, 403),
        ({"origin": "http://testserver", "content-type": "application/json"}, 204),
        ({"authorization": "Bearer token"}, 204),
    ],
)
def test_a_write_by_cookie_needs_json_of_this_site_and_one_by_token_does_not(
    plugin, james, monkeypatch, headers, status
):
    monkeypatch.setattr(plugin.runs, "find", lambda _dags, _run: None)
    answer = james.delete(f"/tasks/{TASK}", headers=headers)
    assert answer.status_code == status, answer.text
