"""The cockpit without stores: rights, headers, text of strangers, last known figures."""

import json
import re
import shlex
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from types import SimpleNamespace
from urllib.parse import quote
from uuid import UUID

import pytest
from fastapi import HTTPException
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from mailslice.actions.request import MAIL_ACTIONS
from mailslice.cockpit import app, views
from mailslice.cockpit.app import POSTS, ROUTES, STATIC, PlanQuestion, Schedule, cockpit
from mailslice.cockpit.data_docs import docs_path, safe_path, with_cockpit_links
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.mails import MailsPage
from mailslice.cockpit.rights import Right
from mailslice.duties.queue_size.age_histogram import OTHERS
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.health import Health, HealthVerdict
from mailslice.maintenance.overview import QueueOverview
from mailslice.maintenance.run_request import run_of_dag
from mailslice.model.errors import StoreUnavailable
from mailslice.model.settings import DutySettings, Settings
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord
from tests.contracts.making import row

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"
MEASURED = {
    "status": "done",
    "measuredAt": "2026-11-23T11:45:00Z",
    "finished": "2026-11-23T11:45:10Z",
    "size": 7,
    "live": 7,
    "window": 3600,
    "shape": {
        "columns": ["5", "10"],
        "total": [3, 4],
        "domains": [
            {"domain": HOSTILE, "total": 7, "counts": [3, 4]},
            {"domain": OTHERS, "total": 2, "counts": [1, 1]},
        ],
    },
    "slices": [{"start": "2026-11-23T11:00:00Z", "live": 7, "dead": 1200, "survivors": 0}],
    "alerts": [
        {"name": "oldest_mail", "text": HOSTILE, "since": "2026-11-23T02:10:00Z", "told": "x"}
    ],
}


def one(queue="spool", health=Health.OK, why="empty", reports=None):
    return QueueOverview(
        queue=queue,
        verdict=HealthVerdict(health, why, None if health is Health.OK else "mailslice help"),
        size=7,
        size_at=NOW - timedelta(minutes=15),
        oldest=NOW - timedelta(hours=3),
        ready=5,
        unacknowledged=2,
        delayed=0,
        parked=0,
        dead_letters=None,
        consumers=1,
        enqueue_rate=1.25,
        deliver_rate=None,
        workers=1,
        reports=reports or {},
    )


class Stores:
    """Opened and closed; the pages under test ask nothing of it."""

    settings = Settings()

    def close(self):
        pass

    def existing_runs(self):
        return None


class Look:
    """What the overview says; raises what it is told to."""

    def __init__(self, *queues):
        self.queues, self.error, self.asked = list(queues), None, 0

    def __call__(self, _stores, _clock):
        self.asked += 1
        if self.error:
            raise self.error
        return self.queues


class Time:
    now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def look():
    return Look(one("spool", reports={"queue_size": MEASURED}), one(HOSTILE, Health.LATE, HOSTILE))


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def facts(look, time, tmp_path):
    settings = Settings(duty=DutySettings(artifacts=str(tmp_path)))
    return Facts(lambda: settings, time, look, open_stores=lambda _settings: Stores())


@pytest.fixture
def client(facts):
    return TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))


def addresses(parameters="?name=spool&queue=spool&id=x&duty=queue_size"):
    return {
        path: path.replace("{name}", "x.js").replace("{path:path}", "x.html") + parameters
        for path in ROUTES
    }


def ask(client, path, address):
    if path not in POSTS:
        return client.get(address).status_code
    return client.post(path, json={}, headers={"origin": "http://testserver"}).status_code


def test_every_route_has_a_right_in_the_table(facts):
    app = cockpit(facts, dict.fromkeys(Right, lambda: None))
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) == len(app.routes)
    assert {route.path for route in routes} == set(ROUTES)
    methods = {route.path: route.methods for route in routes}
    assert methods == {path: {"POST" if path in POSTS else "GET"} for path in ROUTES}


@pytest.mark.parametrize("right", Right)
def test_each_route_is_refused_to_whoever_lacks_its_right(facts, right):
    def refuse():
        raise HTTPException(403, "no")

    guards = {each: refuse if each is right else lambda: None for each in Right}
    client = TestClient(cockpit(facts, guards), raise_server_exceptions=False)
    answers = {path: ask(client, path, address) for path, address in addresses().items()}
    refused = {path for path, status in answers.items() if status == 403}
    assert refused == {path for path, (needed, _) in ROUTES.items() if needed is right}


def test_the_overview_shows_the_figures_with_their_age(client):
    text = client.get("/").text
    assert '>7<small class="faint"> 15 min<' in text
    assert "3 h" in text
    assert "1.2/s" in text
    assert text.count('title="unknown"') >= 2


@pytest.mark.parametrize(
    "address",
    ["/", "/queue?name=spool&tab=domains", "/queue?name=spool&tab=slices", "/?dag=%3Cb%3E&run=r"],
)
def test_text_of_strangers_is_text(client, address):
    answer = client.get(address)
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    assert "\u202e" not in answer.text
    assert "\x1b" not in answer.text


def test_a_queue_with_a_hostile_name_is_found_by_its_link(client):
    href = re.search(r'class="name" href="(queue\?name=%3C[^"]+)"', client.get("/").text)
    assert client.get("/" + href[1] + "&tab=domains").status_code == 200


def test_the_domains_are_shaded_by_their_share(client):
    text = client.get("/queue?name=spool&tab=domains").text
    assert 'class="number heat-7">3<' in text
    assert 'class="number heat-9">4<' in text


def test_the_domains_that_are_summed_up_have_no_list_of_mails(client):
    text = client.get("/queue?name=spool&tab=domains").text
    assert f">{OTHERS}</th>" in text
    assert "domain=%28others%29" not in text


def test_the_slices_are_on_a_time_axis(client):
    text = client.get("/queue?name=spool&tab=slices").text
    (data,) = re.findall(r'data-chart="([^"]+)"', text)
    assert json.loads(data.replace("&#34;", '"')) == {
        "x": [1795431600],
        "live": [7],
        "dead": [1200],
        "survivors": [0],
        "cleaned": [None],
        "window": 3600,
    }


def test_slices_that_cleanups_passed_are_marked_and_no_others():
    def cleanup(first, last, hour):
        starts = {"before": first, "after": last}
        text = {
            name: at and {"contentStart": at and f"2026-11-23T{at}:00Z"}
            for name, at in starts.items()
        }
        return {"finished": f"2026-11-23T{hour}:30:00Z", **text}

    reports = [
        cleanup("10:00", "10:00", "12"),  # moved nothing
        {"finished": None, "before": None, "after": None},  # runs still
        cleanup("08:00", "10:00", "11"),
        cleanup(None, "08:00", "09"),  # the first: nobody knows from where
    ]
    queue = one(reports={"queue_size": MEASURED})
    found = views.slices(queue, reports)
    hours = {row["start"].hour: row["cleaned"] and row["cleaned"].hour for row in found["slices"]}
    assert hours == {11: None, 9: 11, 8: 11}
    assert found["cleaned_before"].hour == 10
    assert found["chart"]["live"] == [None, None, 7]
    assert found["slices"][0]["dead"] == 1200
    long_ago = {
        **cleanup("08:00", "10:00", "11"),
        "before": {"contentStart": "2020-01-01T00:00:00Z"},
    }
    assert len(views.slices(queue, [long_ago])["slices"]) == 100
    assert [row["start"].hour for row in views.slices(queue)["slices"]] == [11]


def test_an_overview_is_shared_for_five_seconds(client, look, time):
    client.get("/")
    time.now = NOW + timedelta(seconds=4)
    client.get("/")
    assert look.asked == 1


def test_an_overview_of_more_than_a_minute_is_made_anew_first(client, look, time):
    client.get("/")
    look.queues = [one("other")]
    time.now = NOW + timedelta(minutes=2)
    assert "other" in client.get("/").text


def test_without_a_store_the_last_known_figures_are_shown_and_why(client, look, time):
    client.get("/")
    look.error = StoreUnavailable("RabbitMQ at 127.0.0.1:5672 does not answer")
    time.now = NOW + timedelta(minutes=2)
    text = client.get("/").text
    assert "RabbitMQ at 127.0.0.1:5672 does not answer. These are the last known figures." in text
    assert "figures of 2 min ago" in text


def test_without_a_store_and_any_figures_it_is_503_with_the_store(client, look):
    look.error = StoreUnavailable("RabbitMQ at 127.0.0.1:5672 does not answer")
    answer = client.get("/")
    assert (answer.status_code, answer.json()) == (
        503,
        {"detail": "RabbitMQ at 127.0.0.1:5672 does not answer"},
    )


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/queue?name=none", 404),
        ("/queue?name=spool&tab=none", 404),
        ("/mail?queue=spool&id=none", 400),
        ("/form?duty=none", 404),
        ("/maintenance?duty=none", 404),
        ("/queue?name=" + "x" * 400, 422),
        ("/queue?name=spool&rounds=-1", 422),
        ("/queue", 422),
        ("/docs", 404),
        ("/redoc", 404),
        ("/openapi.json", 404),
    ],
)
def test_what_is_not_there_is_said(client, address, status):
    for kind in ("text/html", "application/json"):
        answer = client.get(address, headers={"accept": kind})
        assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (status, kind)
        assert ("All queues" in answer.text) is (kind == "text/html")


def test_a_form_has_the_params_of_the_duty_and_begins_as_a_dry_run(client):
    text = client.get("/form?duty=queue_cleanup").text
    assert re.search(r'name="dry_run" data-kind="boolean" checked', text)
    assert 'name="grace"' in text
    assert re.search(r'name="approve" data-kind="boolean" >', text)
    assert 'name="approve"' not in client.get("/form?duty=queue_size").text
    assert 'name="time_limit"' not in text


def test_maintenance_says_schedule_pause_and_which_plans_wait_for_a_person(facts):
    path = "dags/queue_cleanup/runs/r%3A1/tasks/approve/mapped/0/required_actions"
    asks = PlanQuestion("queue_cleanup: apply the plan of queue '<b>'?", NOW, path)
    known = {
        "queue_size": Schedule("*/15 * * * *", paused=True, next=None),
        "queue_cleanup": Schedule("15 2 * * *", paused=False, next=None, questions=(asks,)),
    }
    app = cockpit(facts, dict.fromkeys(Right, lambda: None), schedules=lambda: known)
    text = TestClient(app).get("/maintenance").text
    assert f'data-airflow="{path}" href="../{path}"' in text
    assert "apply the plan of queue &#39;&lt;b&gt;&#39;?" in text
    assert "*/15 * * * *" in text
    assert ">paused<" in text
    assert "Airflow does not know it" in text
    assert "--max-active-runs 1 --from-date" in text, "backfills ignore the DAG's own"


@pytest.mark.parametrize(
    ("address", "button", "right"),
    [
        ("/maintenance", "data-ask=", Right.PREVIEW),
        ("/queue?name=spool&tab=slices", 'data-open="hold"', Right.ACT),
        ("/queue?name=spool&tab=history", "data-ask=", Right.PREVIEW),
    ],
)
def test_a_button_is_shown_to_those_who_may_press_it(facts, address, button, right):
    guards, order = dict.fromkeys(Right, lambda: None), list(Right)
    for most in order:
        rights = frozenset(order[: order.index(most) + 1])
        text = TestClient(cockpit(facts, guards, rights=lambda may=rights: may)).get(address).text
        assert (button in text) is (right in rights), most


def test_mails_that_are_set_aside_are_ticked_by_id_and_attempt(client, monkeypatch):
    about = {"enqueue_id": "4f1c", "name": "m", "stage": "DATA", "worker": "w", "why": "hung"}
    rows = [
        SimpleNamespace(attempt=attempt, since=NOW, finished=finished, **about)
        for attempt, finished in ((1, None), (2, NOW))
    ]
    monkeypatch.setattr(views, "stuck", lambda *_: {"stuck": rows, "letters": None})
    text = client.get("/queue?name=spool&tab=stuck").text
    assert re.findall(r'data-mail="([^"]*)"( data-finished)?', text) == [
        ("4f1c/1", ""),
        ("4f1c/2", " data-finished"),
    ]


def test_of_many_mails_that_are_set_aside_the_oldest_are_shown(client, monkeypatch):
    about = {"name": "m", "stage": "DATA", "since": NOW, "worker": "w", "why": "hung"}
    rows = [
        SimpleNamespace(enqueue_id=f"{number:04}", attempt=1, finished=None, **about)
        for number in range(2234)
    ]
    monkeypatch.setattr(views, "in_quarantine", lambda *_: rows)
    monkeypatch.setattr(views, "newest_report", lambda *_: None)
    text = client.get("/queue?name=spool&tab=stuck").text
    shown = re.findall(r'data-mail="([^"]*)"', text)
    assert (len(shown), shown[-1]) == (1000, "0999/1")
    assert "1,234 more" in text


def test_a_command_on_a_page_has_the_name_of_the_queue_as_one_word(client, look, monkeypatch):
    look.queues.append(one("it's; a b"))
    letters = {"causes": {"expired": 1}, "finished": NOW.isoformat()}
    monkeypatch.setattr(views, "stuck", lambda *_: {"stuck": [], "letters": letters})
    monkeypatch.setattr(views, "mail", lambda *_: None)
    for address in ("queue?name={}&tab=stuck", "mail?queue={}&id=1"):
        text = client.get("/" + address.format(quote("it's; a b"))).text
        [command] = re.findall(r"<code>(mailslice .*?)</code>", text)
        assert "it's; a b" in shlex.split(unescape(command))


def test_a_mail_without_state_shows_none(client, monkeypatch):
    stored = row("spool", NOW)
    envelope = replace(stored.item.mail, state=None)
    line = {"id": "1", "name": "m", "sender": None, "recipients": (), "state": None, "due": None}
    page = MailsPage([{**line, "enqueued": NOW, "attempts": 0, "answer": ""}])
    about = {"envelope": envelope, "due": NOW, "why": [], "content": "present", "attributes": {}}
    monkeypatch.setattr(app, "mails", lambda *_: page)
    monkeypatch.setattr(views, "mail", lambda *_: {"row": stored, **about})
    for address in ("/queue?name=spool", "/mail?queue=spool&id=1"):
        assert "None" not in client.get(address).text


def save_result(facts, failed=None):
    id_ = run_of_dag(MAIL_ACTIONS, "spool", "r")
    folder = RunFolder(artifacts(facts.settings), MAIL_ACTIONS, "spool", id_)
    folder.write_json("result.json", {"action": "delete", "deleted": 2, "failed": failed})


def test_a_result_has_the_overview_made_anew_once(client, facts, look):
    save_result(facts, failed="Cassandra is away")
    asked = []
    for _ in range(3):
        assert client.get("/result?queue=spool&run=r").status_code == 200
        client.get("/")
        asked.append(look.asked)
    save_result(facts)  # a retry of the task
    assert client.get("/result?queue=spool&run=r").status_code == 200
    client.get("/")
    assert (asked, look.asked) == ([1, 1, 1], 2)


def test_the_report_of_an_action_asks_for_several_queues_at_once_until_it_is_there(look, tmp_path):
    look.queues, together = [one("spool"), one("outgoing")], threading.Barrier(2, timeout=20)
    settings, waits = Settings(duty=DutySettings(artifacts=str(tmp_path))), []

    def load():
        if waits:
            together.wait()
        return settings

    facts = Facts(load, lambda: NOW, look, open_stores=lambda _settings: Stores())
    client = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))
    client.get("/")
    waits.append("each of two waits for the other")
    assert 'data-refresh="10"' in client.get("/?dag=mail_actions&run=r").text
    waits.clear()
    for failed, refresh in (("Cassandra is away", 10), (None, 0)):  # a task is tried again
        save_result(facts, failed)
        text = client.get("/?dag=mail_actions&run=r").text
        assert ("2 deleted" in text, f'data-refresh="{refresh}"' in text) == (True, True)


def test_the_report_is_that_of_a_run_whose_plus_airflow_did_not_encode(client, monkeypatch):
    runs = []
    monkeypatch.setattr(views, "runs_of", lambda _stores, _duty, run: runs.append(run) or [])
    for plus in ("+", "%2B"):  # Airflow 3.1, and later
        client.get(f"/?dag=queue_size&run=manual__2026-11-23T10:00:00{plus}00:00")
    assert runs == ["manual__2026-11-23T10:00:00+00:00"] * 2


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_history_has_lines_whose_time_no_clock_can_show(client, monkeypatch, text):
    entries = [{"time": text, "answer": "yes", "source": "log", "says": "accepted"}]
    trace = SimpleNamespace(run=lambda _events: entries)
    monkeypatch.setattr(views, "Trace", lambda *_args, **_options: trace)
    answer = client.get("/trace?queue=spool&id=00000000-0000-0000-0000-000000000001")
    assert (answer.status_code, "accepted" in answer.text) == (200, True)


@pytest.mark.parametrize(("hours", "refresh"), [(1, 10), (25, 0)])
def test_the_report_of_a_run_that_began_a_day_ago_stays_as_it_is(
    client, monkeypatch, hours, refresh
):
    report = {"duty": "queue_size", "status": "done", "started": str(NOW - timedelta(hours=hours))}
    monkeypatch.setattr(views, "runs_of", lambda *_: [views.run_line(report)])
    text = client.get("/?dag=queue_size&run=r").text
    assert f'data-refresh="{refresh}"' in text


def test_the_workers_of_a_queue_are_alive_ended_or_silent(client, monkeypatch):
    mail = InFlightMail(UUID(int=1), "m", timedelta(seconds=1), "loaded", 1, begun=True)
    idle = WorkerRecord("w", "h", 1, NOW, timedelta(seconds=3), 1, read_at=NOW)
    idle = replace(idle, heartbeat=NOW - timedelta(seconds=40))
    records = [idle, replace(idle, ended=True), replace(idle, in_flight=(mail,))]
    rows = [(record, list(record.in_flight)) for record in records]
    monkeypatch.setattr(views, "workers", lambda *_: {"workers": rows})
    text = client.get("/queue?name=spool&tab=workers").text
    said = re.findall(r'<td><span class="pill([^"]*)">([^<]*)<', text)
    assert said == [(" good", "alive"), ("", "ended"), (" bad", "silent for 40 s")]


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


def test_every_answer_lets_nothing_in_from_outside(client):
    for address in ("/", "/static/cockpit.css", "/api/queues", "/docs/none.html"):
        headers = client.get(address).headers
        assert "default-src 'none'" in headers["content-security-policy"], address
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_pages_have_no_script_or_style_of_their_own_and_only_relative_addresses(client):
    for address in ("/", "/queue?name=spool&tab=domains", "/maintenance", "/form?duty=queue_size"):
        text = client.get(address).text
        assert not re.search(r"<script(?![^>]+src=)", text), address
        assert "<style" not in text
        assert " style=" not in text
        assert not re.search(r"\son\w+=", text)
        assert not re.search(r'(?:href|src|action|hx-get)="(?:/|https?:)', text), address


def test_the_script_puts_no_html_into_the_page(client):
    script = client.get("/static/cockpit.js").text + client.get("/static/actions.js").text
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert way not in script


def test_only_files_of_the_page_are_static(client):
    assert client.get("/static/cockpit.css").headers["content-type"].startswith("text/css")
    assert {file.name for file in STATIC.iterdir()} >= {"htmx.min.js", "uPlot.iife.min.js"}
    for name in ("..%2fapp.py", "app.py", "licences.txt"):
        assert client.get(f"/static/{name}").status_code == 404


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


def test_data_docs_are_served_with_their_media_type_and_run_no_script(client, tmp_path):
    (tmp_path / "data_docs" / "gates").mkdir(parents=True)
    (tmp_path / "data_docs" / "index.html").write_text("<p>all</p>")
    (tmp_path / "data_docs" / "tool.sh").write_text("no")
    (tmp_path / "secret.html").write_text("secret")
    (tmp_path / "data_docs" / "link.html").symlink_to(tmp_path / "secret.html")
    answer = client.get("/docs/index.html")
    assert (answer.text, answer.headers["content-type"]) == (
        "<p>all</p>",
        "text/html; charset=utf-8",
    )
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "script-src" not in answer.headers["content-security-policy"]
    for path in ("link.html", "tool.sh", "missing.html", "gates"):
        assert client.get(f"/docs/{path}").status_code == 404


@pytest.mark.parametrize(("path", "home"), [("index.html", "../"), ("gates/x.html", "../../")])
def test_a_page_of_data_docs_leads_back_to_the_cockpit(path, home):
    page = with_cockpit_links(b"<html><head></head><body class=x><h1>PASS</h1></body></html>", path)
    assert f'<a href="{home}">Mail queues</a>'.encode() in page
    assert page.index(b"</nav>") < page.index(b"<h1>")
    assert with_cockpit_links(b"<p>no body</p>", path) == b"<p>no body</p>"


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
