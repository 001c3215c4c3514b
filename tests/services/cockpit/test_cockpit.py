"""The cockpit on real stores: a queue's tabs, one mail, its content, and text of strangers."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from mailslice.admin import queues
from mailslice.cockpit import mails, views
from mailslice.cockpit.app import MAX_ROUNDS, cockpit
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Right
from mailslice.maintenance.artifacts import iso
from mailslice.model.clock import system_clock
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.slices import slice_start
from mailslice.model.verdicts import Verdict
from mailslice.stores import Stores, open_stores
from mailslice.stores.own.runs import RunRow
from mailslice.worker.outcome import Retry
from mailslice.worker.sync_queue import open_queue
from tests.acceptance.command import Cli
from tests.browser.world import enqueue, mail
from tests.contracts.making import row

HOSTILE = "<img src=x onerror=alert(1)>"
EVIL = '"<script>alert(2)</script>"@example.org'


@pytest.fixture
def cli(fresh):
    cli = Cli(fresh.env).inside()
    cli("queue", "create", "spool")
    return cli


@pytest.fixture
def client(fresh):
    facts = Facts(lambda: fresh.settings)
    yield TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))
    facts.close()


def add(cli, name, recipient="bob@example.net", sender="alice@example.org"):
    words = ("--sender", sender, "--recipient", recipient, "--name", name)
    body = f"Subject: {name}\r\n\r\nbody of {name}".encode()
    (line,) = cli.json("mail", "enqueue", "spool", "-", *words, stdin=body)
    return line["enqueueId"]


def names(answer):
    return re.findall(r'<td><a class="name" href="mail\?[^"]+">([^<]*)</a>', answer.text)


def test_the_mails_of_a_queue_are_listed_filtered_and_paged(cli, client, monkeypatch):
    for number in range(5):
        add(cli, f"m{number}", recipient=f"r{number}@{'example.net' if number else 'mills.org'}")
    assert names(client.get("/queue?name=spool")) == ["m0", "m1", "m2", "m3", "m4"]
    assert names(client.get("/queue?name=spool&domain=mills.*")) == ["m0"]
    assert names(client.get("/queue?name=spool&mail=m[3]")) == []
    assert names(client.get("/queue?name=spool&mail=m?&recipient=r3@*")) == ["m3"]
    assert names(client.get("/queue?name=spool&older_than=1h")) == []
    monkeypatch.setattr(mails, "PAGE", 2)
    address, seen = "/queue?name=spool&domain=example.net", []
    while address:
        answer = client.get(address)
        seen += names(answer)
        more = re.search(r'href="(queue\?[^"]+after=[^"]+)"', answer.text)
        address = "/" + html.unescape(more[1]) if more else None
    assert seen == ["m1", "m2", "m3", "m4"]


def test_the_mails_of_a_slice_are_shown_alone_and_acted_on_by_id(cli, client, fresh):
    ages = [timedelta(hours=hours) for hours in (5, 3, 3, 0)]
    mails = [(age, mail(f"m{number}")) for number, age in enumerate(ages)]
    items = enqueue(fresh.settings, "spool", mails)
    now = system_clock()
    slices = {
        hours: slice_start(now - timedelta(hours=hours), timedelta(hours=1)) for hours in (3, 9)
    }
    address = f"/queue?name=spool&slice={quote(slices[3].isoformat())}"
    answer = client.get(address)
    assert names(answer) == ["m1", "m2"]
    about = json.loads(html.unescape(re.search(r"data-about='([^']+)'", answer.text)[1]))
    assert about == {"queue": "spool", "ids": [str(one.enqueue_id) for one in items[1:3]]}
    assert names(client.get(f"{address}&mail=m2")) == ["m2"]
    empty = client.get(f"/queue?name=spool&slice={quote(slices[9].isoformat())}").text
    assert "data-about" not in empty
    for text in ("soon", "2026-11-23T11:00:00"):
        answer = client.get(f"/queue?name=spool&slice={text}")
        assert (answer.status_code, "allowed is a time as" in answer.text) == (200, True)
        assert "data-about" not in answer.text


def test_a_page_that_may_read_no_more_says_so_and_goes_on_where_it_was(cli, client, monkeypatch):
    for number in range(7):
        add(cli, f"m{number}")
    for name in ("m0", "m1", "m2", "m3"):
        cli("queue", "delete", "spool", "--name", name, "--yes")
    monkeypatch.setattr(mails, "PageReading", partial(mails.PageReading, marks=1))
    address, pages = "/queue?name=spool", []
    while address:
        answer = client.get(address)
        pages.append((names(answer), "it looked as far as mails of" in answer.text))
        more = re.search(r'rel="next" href="(queue\?[^"]+after=[^"]+)"', answer.text)
        assert (more is not None) == pages[-1][1]
        address = "/" + html.unescape(more[1]) if more else None
    assert [name for page, _ in pages for name in page] == ["m4", "m5", "m6"]
    assert len(pages) > 2
    assert pages[0][0] == []


def test_a_list_that_finds_nothing_stops_by_itself_and_goes_on_at_a_click(cli, client, monkeypatch):
    for number in range(5):
        add(cli, f"m{number}")
    monkeypatch.setattr(mails, "PageReading", partial(mails.PageReading, marks=1))
    answer = client.get(f"/queue?name=spool&sender=nobody@x&rounds={MAX_ROUNDS - 1}").text
    assert "so far; the page looks further" in answer
    further = re.search(r' hx-get="(queue\?name=spool&amp;tab[^"]+)"', answer)[1]
    assert further.endswith(f"&amp;rounds={MAX_ROUNDS}")
    answer = client.get("/" + html.unescape(further)).text
    assert "No mail matches so far." in answer
    assert 'hx-trigger="load' not in answer
    following = re.search(r'rel="next" href="([^"]+)">Continue<', answer)[1]
    assert "rounds" not in following
    assert 'hx-trigger="load' in client.get("/" + html.unescape(following)).text


def test_a_position_that_is_none_is_said(cli, client):
    for after in ("soon", "1.2.3", "99999999999999999999.1.x", "1.1"):
        answer = client.get(f"/queue?name=spool&after={after}")
        assert answer.status_code == 200
        assert re.search(r'<p class="problem" role="alert">([^<]+)', answer.text), after


def test_old_slices_that_were_measured_without_mails_are_not_read(fresh, client):
    """A live row put there since is not listed before the next measurement, nor is it lost."""
    now, hour = system_clock(), timedelta(hours=1)
    with open_stores(fresh.settings) as stores:
        queue = queues.create(stores, "spool")
        times = {"empty": 9, "live": 7, "dead": 6, "settling": 1, "new": 0}
        rows = {name: row(queue, now - back * hour, name=name) for name, back in times.items()}
        stores.tables.browse_starts.insert_first(queue, rows["empty"].partition.slice_start)
        stores.tables.v4.insert_many(rows.values())
        listed = lambda: names(client.get("/queue?name=spool"))
        assert listed() == [*times]
        live = rows["live"]
        starts = {rows["live"].partition.slice_start: 1, rows["dead"].partition.slice_start: 0}
        slices = [{"start": iso(start), "live": n, "dead": 3} for start, n in starts.items()]
        report = {
            "size": 1,
            "measuredAt": iso(now - hour / 2),
            "oldest": iso(live.enqueued_time),
            "slices": slices,
        }
        run = RunRow("r", "queue_size", queue, now, "done", json.dumps(report), finished=now)
        stores.own.runs.save(run, timedelta(days=1))
        client.get("/queue?name=none")  # a new look
        assert listed() == ["live", "settling", "new"]
        text = client.get("/queue?name=spool&mail=*").text
        assert "a mail that somebody wrote into them since is missing" in text
        link = re.search(r'<a href="(\S+)">Read all slices<', text)[1]
        answer = client.get("/" + html.unescape(link))
        assert names(answer) == [*times]
        assert "Read all slices" not in answer.text
        about = json.loads(html.unescape(re.search(r"data-about='([^']+)'", answer.text)[1]))
        assert about == {"queue": "spool", "name": "*"}


def test_mails_are_filtered_by_state_and_by_when_they_are_due(cli, client, fresh):
    now = timedelta(0)
    enqueue(fresh.settings, "spool", [(now, mail("soon")), (now, mail("late"))])
    for after in (timedelta(minutes=30), timedelta(hours=5)):
        with open_queue("spool", fresh.settings) as opened:
            opened.consume(lambda _mail, _content, after=after: Retry(after=after), most=1)
    enqueue(fresh.settings, "spool", [(now, replace(mail("broken"), state="error"))])
    shown = lambda query: names(client.get(f"/queue?name=spool&{query}"))
    assert shown("due=1h") == ["soon"]
    assert shown("due=1d") == ["soon", "late"]
    assert shown("due=1d&mail=l*") == ["late"]
    assert shown("state=ERR*") == shown("state=error") == ["broken"]
    text = client.get("/queue?name=spool&due=1h").text
    about = json.loads(html.unescape(re.search(r"data-about='([^']+)'", text)[1]))
    assert set(about) == {"queue", "ids"}, "no action goes by the time at which mails are due"
    for query, says in (
        ("due=soon", "soon"),
        ("due=99999999d", "99999999d"),
        ("verdict=gone", "allowed: waiting"),
    ):
        answer = client.get(f"/queue?name=spool&{query}")
        assert says in re.search(r'<p class="problem" role="alert">([^<]+)', answer.text)[1]


def test_mails_are_filtered_by_the_verdict_of_the_newest_audit(cli, client, fresh):
    assert "no audit yet: run queue_audit" in client.get("/queue?name=spool&verdict=lost").text
    enqueue(fresh.settings, "spool", [(timedelta(hours=2), mail("old"))])
    cli("duty", "run", "queue_audit", "--queue", "spool")
    answers = {verdict: client.get(f"/queue?name=spool&verdict={verdict}") for verdict in Verdict}
    (verdict,) = (one for one, answer in answers.items() if names(answer) == ["old"])
    assert "The verdict is that of queue_audit, " in answers[verdict].text


def test_what_matches_is_exported_as_a_file_that_no_spreadsheet_runs(cli, client, monkeypatch):
    for name in ('=HYPERLINK("http://x.example")', "@sum", "-1+2", " =cmd|x!A1", "tide", HOSTILE):
        add(cli, name, recipient="r@mills.org")
    add(cli, "other")
    answer = client.get("/export?name=spool&domain=mills.org")
    assert answer.headers["content-disposition"] == 'attachment; filename="spool-6-mails.csv"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["name"] for row in rows] == [
        *('\'=HYPERLINK("http://x.example")', "'@sum", "'-1+2", "' =cmd|x!A1", "tide", HOSTILE)
    ]
    assert rows[4]["recipients"] == "r@mills.org"
    for most, page, name in ((3, 3, "first-3"), (3, 2, "first-3"), (7, 7, "7"), (7, 2, "7")):
        monkeypatch.setattr(mails, "MAX_EXPORTED", most)
        monkeypatch.setattr(mails, "PAGE", page)
        answer = client.get("/export?name=spool")
        assert f'"spool-{name}-mails.csv"' in answer.headers["content-disposition"]
        assert len(list(csv.DictReader(io.StringIO(answer.text)))) == most
    assert client.get("/export?name=spool&older_than=soon").status_code == 400
    assert client.get("/export?name=none").status_code == 404


def test_a_mail_has_its_history_also_when_it_is_not_live_any_more(cli, client):
    id_ = add(cli, "tide")
    address = f"/trace?queue=spool&id={id_}"
    assert "live: a row in slice" in client.get(address).text
    cli("queue", "delete", "spool", "--name", "tide", "--yes")
    text = client.get(address).text
    assert "it has a deleted mark" in text
    assert "live: a row" not in text
    (kept,) = cli.json("queue", "deleted", "spool")
    command = (
        f"`mailslice queue undelete spool --run {kept['run']} --id {id_} --yes` brings it back"
    )
    assert command in text
    shown = cli.json("mail", "trace", "tide", "--queue", "spool")
    assert [one["says"].endswith(command) for one in shown if one["source"] == "deleted"] == [True]
    assert (
        f'hx-get="trace?queue=spool&amp;id={id_}"' in client.get(f"/mail?queue=spool&id={id_}").text
    )
    assert client.get("/trace?queue=spool&id=soon").status_code == 400


def test_the_history_has_the_attempts_that_the_logs_of_the_settings_name(cli, fresh, tmp_path):
    id_ = add(cli, "tide")
    attempt = {"event": "deferred", "enqueueId": id_, "name": "tide", "answer": "451 <b>later"}
    times = ("2026-11-24T06:00:01Z", "soon")
    lines = [json.dumps({"time": time} | attempt) for time in times]
    (tmp_path / "worker.log").write_text("\n".join(["text for people", *lines, ""]))
    log = fresh.settings.log.model_copy(update={"files": (f"{tmp_path}/*.log",)})
    settings = fresh.settings.model_copy(update={"log": log})
    facts = Facts(lambda: settings)
    client = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))
    text = client.get(f"/trace?queue=spool&id={id_}").text
    facts.close()
    assert "deferred; answer: 451 &lt;b&gt;later" in text
    assert "live: a row in slice" in text
    shown = cli.but(MAILSLICE_LOG_FILES=f"{tmp_path}/*.log").json("mail", "trace", "tide")
    assert ("log", "deferred; answer: 451 <b>later") in {
        (one["source"], one["says"]) for one in shown
    }


def test_a_filter_that_is_none_is_said_beside_the_form(cli, client):
    add(cli, "one")
    answer = client.get("/queue?name=spool&older_than=soon")
    assert answer.status_code == 200
    assert "soon" in re.search(r'<p class="problem"[^>]*>([^<]+)', answer.text)[1]


def test_text_of_strangers_stays_text_on_every_page(cli, client):
    id_ = add(cli, HOSTILE, recipient=EVIL, sender=EVIL)
    for address in ("/queue?name=spool", f"/mail?queue=spool&id={id_}"):
        text = client.get(address).text
        assert "<img" not in text
        assert "<script>alert" not in text
        assert "&lt;img src=x" in text


def test_one_mail_says_all_but_its_content(cli, client):
    id_ = add(cli, "tide")
    text = client.get(f"/mail?queue=spool&id={id_}").text
    for word in ("alice@example.org", "bob@example.net", id_, "as soon as a worker is free"):
        assert word in text
    assert "body of tide" not in text
    missing = client.get("/mail?queue=spool&id=00000000-0000-0000-0000-000000000000")
    assert "No live mail of spool has this id" in missing.text


def test_the_content_is_a_download_and_each_look_is_recorded(cli, client, fresh):
    id_ = add(cli, "tide")
    answer = client.get(f"/content?queue=spool&id={id_}")
    assert answer.content == b"Subject: tide\r\n\r\nbody of tide"
    assert answer.headers["content-disposition"] == f'attachment; filename="{id_}.eml"'
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    files = Path(fresh.env["MAILSLICE_ARTIFACTS"], "decisions").rglob("*.json")
    looks = [json.loads(file.read_text()) for file in files]
    assert [
        (look["queue"], look["mail"]) for look in looks if look["action"] == "mail content"
    ] == [("spool", id_)]
    (look,) = (one for one in cli.json("decisions", "list") if one["action"] == "mail content")
    assert look["enqueueId"] == id_


def test_stores_are_closed_after_the_last_byte_of_a_download(cli, fresh, monkeypatch):
    """Closed under it they would open again, and nobody would close them."""
    id_, closed = add(cli, "tide"), []
    close = Stores.close
    monkeypatch.setattr(Stores, "close", lambda stores: (closed.append(stores), close(stores)))
    facts = Facts(lambda: fresh.settings)
    pieces = views.content(facts, QueueName("spool"), id_)
    header = next(pieces)
    with pytest.raises(StoreUnavailable), facts.stores():
        raise StoreUnavailable("S3 does not answer another question")
    assert closed == []
    assert header + b"".join(pieces) == b"Subject: tide\r\n\r\nbody of tide"
    assert len(closed) == 1
    facts.close()


def test_a_content_that_is_lost_is_said_and_no_half_file_is_sent(cli, client, fresh):
    header, body = add(cli, "header"), add(cli, "body")
    rows = {row["enqueueId"]: row for row in cli.json("queue", "browse", "spool")}
    with open_stores(fresh.settings) as stores:
        stores.blobs.delete_many([rows[header]["headerBlobId"], rows[body]["bodyBlobId"]])
    for id_ in (header, body):
        answer = client.get(f"/content?queue=spool&id={id_}")
        assert (answer.status_code, "content lost" in answer.json()["detail"]) == (404, True)


def test_a_key_of_s3_that_was_renewed_counts_for_the_next_mail(cli, fresh):
    id_ = add(cli, "tide")
    s3 = fresh.settings.s3.model_copy(update={"secret_key": SecretStr("swordfish")})
    given = [fresh.settings.model_copy(update={"s3": s3})]
    facts = Facts(lambda: given[-1])
    client = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None)))
    assert "it is unknown whether" in client.get(f"/mail?queue=spool&id={id_}").text
    given.append(fresh.settings)
    assert "it is unknown whether" not in client.get(f"/mail?queue=spool&id={id_}").text
    facts.close()


def test_every_tab_is_there_before_and_after_a_measurement(cli, client):
    add(cli, "tide")
    for _ in range(2):
        for tab in views.TABS:
            assert client.get(f"/queue?name=spool&tab={tab}").status_code == 200, tab
        assert client.get("/maintenance").status_code == 200
        cli("duty", "run", "queue_size", "--queue", "spool")
    text = client.get("/queue?name=spool&tab=history").text
    assert text.count(">queue_size<") == 2
    assert client.get("/count?name=spool").json() == {"queue": "spool", "size": 1}


def test_slices_that_a_cleanup_passed_are_marked_beside_live_dead_and_survivors(cli, client, fresh):
    ages = {"gone": 9, "old": 5, "done": 5, "new": 0}
    hour = timedelta(hours=1)
    enqueue(fresh.settings, "spool", [(back * hour, mail(name)) for name, back in ages.items()])
    starts = {name: slice_start(system_clock() - back * hour, hour) for name, back in ages.items()}
    cli("queue", "delete", "spool", "--name", "gone", "--yes")
    cli("duty", "run", "queue_cleanup", "--queue", "spool")
    cli("queue", "delete", "spool", "--name", "done", "--yes")
    cli("duty", "run", "queue_size", "--queue", "spool")
    client.get("/queue?name=none")  # a new look
    text = client.get("/queue?name=spool&tab=slices").text
    (data,) = re.findall(r'data-chart="([^"]+)"', text)
    chart = json.loads(html.unescape(data))
    counts = zip(*(chart[name] for name in views.COUNTS), strict=True)
    of = dict(zip(chart["x"], counts, strict=True))
    assert of[starts["old"].timestamp()] == (1, 1, 1)
    assert of[starts["new"].timestamp()] == (1, 0, 0)
    passed = [starts["gone"] + back * hour for back in range(4)]
    cleaned = {x for x, at in zip(chart["x"], chart["cleaned"], strict=True) if at}
    assert cleaned == {one.timestamp() for one in passed}
    assert f"No row is left before {starts['old']:%Y-%m-%d %H:%M:%S} UTC" in text


def test_an_alert_that_is_over_stands_in_the_overview_for_a_day(cli, fresh):
    add(cli, "tide")
    size = ("duty", "run", "queue_size", "--queue", "spool")
    time.sleep(1.1)
    cli.but(MAILSLICE_ALERT_OLDEST_MAIL="1s")(*size)
    # "0 consumers" is another alert: RabbitMQ renews that figure every few seconds.
    (alert,) = re.findall(r"! (spool: the oldest mail .*? UTC)", overview_alerts(fresh))
    cli(*size)
    over = overview_alerts(fresh)
    assert f"over: {alert}" in over
    assert f"! {alert}" not in over
    assert ", last seen 20" in over


def overview_alerts(fresh):
    facts = Facts(lambda: fresh.settings)
    text = TestClient(cockpit(facts, dict.fromkeys(Right, lambda: None))).get("/").text
    facts.close()
    (section,) = re.findall(r'<section class="alerts".*?</section>', text, re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", "", section).split())
