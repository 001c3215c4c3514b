"""Actions on the page: a preview, its start as the user, what came of it. Stores are real; what
starts runs of Airflow is a double that does the run at once.
"""

from __future__ import annotations

import json
import re
from html import unescape
from uuid import uuid4

import pytest
from fastapi import HTTPException, Request
from fastapi.testclient import TestClient

from mailslice.actions.request import ActionRequest
from mailslice.actions.run import ActionRun
from mailslice.cockpit.app import cockpit
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Right
from mailslice.model.errors import BadInput
from mailslice.stores import open_stores
from tests.acceptance.command import Cli
from tests.services.hop_queue import consumed

HOSTILE = "<img src=x onerror=alert(1)>"
OWN = {"origin": "http://testserver"}


class Runs:
    """Starts runs, and does them."""

    def __init__(self, settings):
        self.settings, self.confs = settings, []

    def __call__(self, dag, conf, who):
        assert dag == "mail_actions"
        self.confs.append((conf, who))
        name = f"manual__{len(self.confs)}"
        context = {"who": who, "reason": conf.get("reason")}
        run = ActionRun.of_dag(ActionRequest.of(conf), name, conf.get("digest") or "", **context)
        run.select(self.settings)
        run.act(self.settings)
        return name


@pytest.fixture(scope="module")
def runs(fresh_module):
    return Runs(fresh_module.settings)


@pytest.fixture(scope="module")
def client(fresh_module, runs):
    facts = Facts(lambda: fresh_module.settings)

    def op(request: Request):
        request.state.who = "ada"

    guards = {**dict.fromkeys(Right, lambda: None), Right.ACT: op}
    yield TestClient(cockpit(facts, guards, start=runs), headers=OWN)
    facts.close()


@pytest.fixture
def cli(fresh_module):
    return Cli(fresh_module.env).inside().own_queue()


def add(cli, name, sender="alice@example.org"):
    words = ("--sender", sender, "--recipient", "bob@example.net", "--name", name)
    (line,) = cli.json("mail", "enqueue", "spool", "-", *words, stdin=b"Subject: x\r\n\r\nbody")
    return line["enqueueId"]


def names(cli):
    return [line["name"] for line in cli.json("queue", "browse", "spool")]


def conf_of(answer):
    assert answer.status_code == 200, answer.text
    return json.loads(unescape(re.search(r"data-act='([^']+)'", answer.text)[1]))


def test_a_filter_is_previewed_and_its_mails_alone_are_deleted(cli, client, runs):
    for name in ("spam-1", "spam-2", "good"):
        add(cli, name)
    answer = client.post(
        "/preview", json={"queue": cli.spool, "action": "delete", "name": "spam-*"}
    )
    conf = conf_of(answer)
    assert "Delete: 2 mails" in answer.text
    assert "66.7 % of the queue" in answer.text
    assert "36 Bytes" in answer.text
    assert re.findall(r"<td>(spam-\d)</td>", answer.text) == ["spam-1", "spam-2"]
    add(cli, "spam-3")
    started = client.post("/act", json={**conf, "reason": "flood"})
    assert started.json() == {"dag": "mail_actions", "run": f"manual__{len(runs.confs)}"}
    assert runs.confs[-1] == ({**conf, "reason": "flood"}, "ada")
    assert names(cli) == ["good", "spam-3"]
    text = client.get("/result", params={"queue": cli.spool, "run": started.json()["run"]}).text
    assert "2 deleted" in text
    decisions = cli.json("decisions", "list", "--queue", "spool")
    (decision,) = (one for one in decisions if one["action"] == "queue delete")
    page = client.get("/", params=started.json())
    assert "delete, " + cli.spool in page.text
    assert "2 deleted" in page.text
    assert "No result yet" in client.get("/", params={"dag": "mail_actions", "run": "none"}).text
    undo = conf_of(client.get("/result", params={"queue": cli.spool, "run": started.json()["run"]}))
    assert conf_of(page) == undo
    assert client.post("/act", json=undo).status_code == 200
    assert sorted(names(cli)) == ["good", "spam-1", "spam-2", "spam-3"]
    assert (decision["who"], decision["reason"]) == ("ada", "flood")


def test_ticked_mails_are_retried_and_moved(cli, client, fresh_module):
    one, _ = add(cli, "one"), add(cli, "two")
    other = f"other-{uuid4().hex[:6]}"
    Cli(fresh_module.env).inside()("queue", "create", other)
    asked = {"queue": cli.spool, "ids": [one]}
    answer = client.post("/preview", json={**asked, "action": "retry"})
    assert "No delayed mail matches" in answer.text
    conf = conf_of(client.post("/preview", json={**asked, "action": "move", "to": other}))
    assert client.post("/act", json=conf).status_code == 200
    assert names(cli) == ["two"]


def test_no_ids_are_no_filter_and_an_empty_list_is_refused(cli, client, runs, fresh_module):
    """On the page, and in a run without a preview: a list that a script made may be empty."""
    add(cli, "one"), add(cli, "two")
    other = f"other-{uuid4().hex[:6]}"
    Cli(fresh_module.env).inside()("queue", "create", other)
    move = {"queue": cli.spool, "action": "move", "to": other}
    for empty in ([], "", {}, False):
        for route in ("/preview", "/act"):
            answer = client.post(route, json={**move, "ids": empty, "digest": "any"})
            assert answer.status_code == 400, (route, empty)
            assert "ids: allowed is a list of enqueue ids, not empty" in answer.text
        with pytest.raises(BadInput, match="not empty"):
            runs("mail_actions", {**move, "ids": empty, "digest": "any"}, "ada")
    assert names(cli) == ["one", "two"]
    for absent in ({}, {"ids": None}):
        assert "Move: 2 mails" in client.post("/preview", json={**move, **absent}).text
    runs("mail_actions", {**move, "ids": None, "digest": "any"}, "ada")
    assert names(cli) == []


def test_a_preview_is_good_for_its_own_request_alone(cli, client, runs):
    add(cli, "spam"), add(cli, "good")
    conf = conf_of(
        client.post("/preview", json={"queue": cli.spool, "action": "delete", "name": "spam"})
    )
    before = len(runs.confs)
    for changes in ({"name": "*"}, {"action": "retry"}, {"digest": "0" * 64}, {"digest": "any"}):
        answer = client.post("/act", json={**conf, **changes})
        assert answer.status_code == 400, changes
        assert "preview" in answer.json()["detail"]
    assert len(runs.confs) == before
    assert names(cli) == ["spam", "good"]


def test_what_strangers_wrote_stays_text_in_a_preview(cli, client):
    add(cli, HOSTILE, sender='"<b>x</b>"@example.org')
    text = client.post("/preview", json={"queue": cli.spool, "action": "clear"}).text
    assert "<img" not in text
    assert "<b>x" not in text
    assert "&lt;img src=x" in text
    asked = {"queue": cli.spool, "action": "delete", "name": "'><img src=x>*"}
    assert "<img" not in client.post("/preview", json=asked).text


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"action": "drop"}, "allowed: delete"),
        ({"action": "delete"}, "give at least one of sender"),
        ({"action": "delete", "older_than": "soon", "name": "x"}, "soon"),
        ({"action": "move", "name": "x", "to": "nowhere"}, "no mail queue 'nowhere'"),
        ({"action": "clear", "queue": "nowhere"}, "no mail queue 'nowhere'"),
    ],
)
def test_what_cannot_be_done_is_said(cli, client, asked, says):
    answer = client.post("/preview", json={"queue": cli.spool, **asked})
    assert (answer.status_code, says in answer.json()["detail"]) == (400, True), answer.text


def test_the_queue_page_has_the_buttons_and_the_filter_they_act_on(cli, client):
    id_ = add(cli, "spam-1")
    text = client.get(f"/queue?name={cli.spool}&mail=spam-*").text
    about = json.loads(unescape(re.search(r"data-about='([^']+)'", text)[1]))
    assert about == {"queue": cli.spool, "name": "spam-*"}
    assert f'data-mail="{id_}"' in text
    for action in ("delete", "retry"):
        assert f'data-action="{action}"' in text
    text = client.get(f"/mail?queue={cli.spool}&id={id_}").text
    about = json.loads(unescape(re.search(r"data-about='([^']+)'", text)[1]))
    assert about == {"queue": cli.spool, "ids": [id_]}


def test_a_delay_needs_a_worker_and_says_so_in_its_preview(cli, client, fresh_module):
    id_ = add(cli, "one")
    asked = {"queue": cli.spool, "action": "delay", "lasts": "30m", "ids": [id_]}
    answer = client.post("/preview", json=asked)
    assert (answer.status_code, "start one first" in answer.json()["detail"]) == (400, True)
    with open_stores(fresh_module.settings) as stores, consumed(stores, cli.spool):
        answer = client.post("/preview", json=asked)
    assert "They wait for 30m from the start of the run." in answer.text
    assert conf_of(answer)["lasts"] == "30m"


def test_a_queue_is_held_and_released_from_its_page(cli, client, fresh_module):
    about = conf_of(client.get(f"/queue?name={cli.spool}&tab=slices"))
    asked = {**about, "domain": "mills.example", "reason": "<b>down</b>"}
    assert about == {"queue": cli.spool, "action": "hold"}
    assert client.post("/act", json=asked).status_code == 200
    (line,) = cli.json("queue", "holds", "spool")
    assert (line["domain"], line["who"], line["reason"]) == (
        "mills.example",
        "ada",
        asked["reason"],
    )
    facts = Facts(lambda: fresh_module.settings)  # figures are shared for five seconds
    page = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))
    answer = page.get(f"/queue?name={cli.spool}&tab=slices")
    facts.close()
    assert "&lt;b&gt;down" in answer.text
    release = conf_of(answer)
    assert (release["action"], release["domain"]) == ("release", "mills.example")
    assert client.post("/act", json=release).status_code == 200
    assert cli.json("queue", "holds", "spool") == []


@pytest.mark.parametrize("right", [Right.PREVIEW, Right.ACT])
def test_preview_and_act_are_rights_of_their_own(cli, runs, fresh_module, right):
    def refuse():
        raise HTTPException(403, "no")

    facts = Facts(lambda: fresh_module.settings)
    guards = {each: refuse if each is right else lambda: None for each in Right}
    client = TestClient(cockpit(facts, guards, start=runs), headers=OWN)
    asked = {"queue": cli.spool, "action": "clear"}
    answers = {path: client.post(path, json=asked).status_code for path in ("/preview", "/act")}
    facts.close()
    path = {Right.PREVIEW: "/preview", Right.ACT: "/act"}[right]
    assert [one for one, status in answers.items() if status == 403] == [path]


@pytest.mark.parametrize("path", ["/preview", "/act"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"content-type": "text/plain"},
        {"content-length": "9999999"},
    ],
)
def test_a_write_of_another_site_or_without_json_is_refused(client, path, headers):
    given = {"content-type": "application/json", **headers}
    answer = client.post(path, headers=given, content=b'{"action": "clear"}')
    assert answer.status_code in {403, 413}


def test_a_script_with_a_token_needs_the_right_alone(cli, client):
    add(cli, "spam"), add(cli, "good")
    asked = {"queue": cli.spool, "action": "delete", "name": "spam"}
    given = {"origin": "", "authorization": "Bearer token"}
    conf = conf_of(client.post("/preview", headers=given, json=asked))
    assert client.post("/act", headers=given, json=conf).status_code == 200
    assert names(cli) == ["good"]
    huge = {**given, "content-length": "9999999"}
    assert client.post("/act", headers=huge, content=b"{}").status_code == 413
