"""Monitoring by whole processes: a worker that relays, smtp-in and the exporter beside it.

One scrape of all three is what promtool, the rules and the dashboards are held against.
"""

from __future__ import annotations

import json
import os
import re
import signal
import smtplib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mailslice.model.names import RabbitNames
from mailslice.model.settings import clone_root
from mailslice.stores.rabbitmq.management import Management
from stack.promtool import promtool
from tests.acceptance.command import MAILSLICE, Cli
from tests.conftest import Fresh
from tests.ports import free_port
from tests.services.worker_process.sink import Sink, running

pytestmark = pytest.mark.new_keyspaces

DOCS = clone_root() / "docs"
BOB, CAROL, DAVE = "bob@next.example", "carol@next.example", "dave@next.example"


@dataclass
class Site:
    """A queue with a relay, smtp-in and an exporter, and a log of both."""

    cli: Cli
    log: Path
    smtp_port: int
    scrapes: dict[str, int]
    sink: Sink

    def send(self, *recipients: str) -> str:
        """A mail by SMTP; its enqueue id."""
        with smtplib.SMTP("127.0.0.1", self.smtp_port, timeout=20) as client:
            client.ehlo()
            client.mail("alice@here.example")
            for recipient in recipients:
                client.rcpt(recipient)
            code, words = client.data(
                b"Subject: x\r\nMessage-ID: <4711@here.example>\r\n\r\nbody\r\n"
            )
        assert code == 250, words
        return words.decode().rsplit(" ", 1)[1]

    def events(self, enqueue_id: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_text().splitlines() if line.startswith('{"time"')]
        found = [json.loads(line) for line in lines if enqueue_id in line]
        return sorted((one for one in found if "event" in one), key=lambda one: str(one["time"]))

    def scrape(self, process: str) -> str:
        return fetch(self.scrapes[process], "/metrics")[1]


def fetch(port: int, path: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def site(fresh_module: Fresh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    log = tmp_path_factory.mktemp("monitoring") / "log"
    refuse = {CAROL: "451 4.7.1 <carol@next.example> try later", DAVE: "550 5.1.1 no such user"}
    ports = {name: free_port() for name in ("worker", "smtp-in", "exporter", "smtp")}
    cli = Cli(fresh_module.env)
    cli.inside()("queue", "create", "out")
    started: list[subprocess.Popen[bytes]] = []
    with running(Sink(refuse=refuse)) as sink, log.open("ab") as stderr:
        environ = {
            **fresh_module.environ,
            "MAILSLICE_RELAY_HOST": "127.0.0.1",
            "MAILSLICE_RELAY_PORT": str(sink.port),
            "MAILSLICE_LOG_FORMAT": "json",
        }

        def start(*words: object) -> None:
            command = [str(MAILSLICE), *map(str, words)]
            null = subprocess.DEVNULL
            started.append(subprocess.Popen(command, env=environ, stdout=null, stderr=stderr))

        measuring: subprocess.Popen[bytes] | None = None
        try:
            relay = ("--handler", "relay", "--health-port", ports["worker"])
            start("worker", "run", "--queue", "out", *relay)
            smtp = ("--port", ports["smtp"], "--health-port", ports["smtp-in"])
            start("worker", "smtp-in", "--queue", "out", *smtp)
            measuring = cli.start("duty", "run", "queue_size", "--queue", "out")
            start("exporter", "--port", ports["exporter"], "--interval", "1s")
            for name in ("worker", "smtp-in", "exporter"):
                port = ports[name]
                until(lambda port=port: fetch(port, "/readyz")[0] == 200, f"{name} is ready")
            management, names = Management(fresh_module.settings.rabbitmq), RabbitNames("out")
            until(
                lambda: management.messages(names.park_queue) is not None,
                "RabbitMQ has figures of the park queue",
            )
            yield Site(cli.inside(), log, ports["smtp"], ports, sink)
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            codes = [process.wait(60) for process in started]
            if measuring is not None:
                measuring.kill()
                measuring.communicate()
    assert codes == [0, 0, 0], log.read_text()[-2000:]


def test_a_delivered_mail_has_its_lines_with_the_servers_answer(site: Site) -> None:
    enqueue_id = site.send(BOB)
    until(lambda: len(site.events(enqueue_id)) >= 3, "three events")
    events = site.events(enqueue_id)
    # Two processes write: a worker may begin before RabbitMQ has answered the one that enqueued.
    accepted, attempt, delivered = sorted(events, key=lambda one: one["event"] != "accepted")
    assert [one["event"] for one in (accepted, attempt, delivered)] == [
        "accepted",
        "attempt",
        "delivered",
    ]
    for one in (accepted, attempt, delivered):
        ids = (one["queue"], one["enqueueId"], one["messageId"], one["recipients"])
        assert ids == ("out", enqueue_id, "<4711@here.example>", 1)
        assert one["name"] == accepted["name"]
    assert attempt["worker"] == delivered["worker"] != accepted["worker"]
    assert (attempt["attempt"], delivered["attempt"]) == (1, 1)
    assert delivered["answer"].startswith("250 ")
    assert "next.example" not in json.dumps([accepted, attempt, delivered])


def test_a_deferred_mail_says_why_and_when_it_is_tried_again(site: Site) -> None:
    enqueue_id = site.send(BOB, CAROL)
    until(lambda: len(site.events(enqueue_id)) >= 4, "four events")
    events = {one["event"]: one for one in site.events(enqueue_id)}
    assert set(events) == {"accepted", "attempt", "delivered", "deferred"}
    deferred, delivered = events["deferred"], events["delivered"]
    assert (events["accepted"]["recipients"], delivered["recipients"]) == (2, 1)
    assert deferred["recipients"] == 1
    assert deferred["why"] == "451 4.7.1 <***> try later (for 1)"
    assert deferred["next"] > deferred["time"]
    entries = site.cli.json("mail", "trace", enqueue_id, "--queue", "out", "--log", site.log)
    answers = {(one["source"], one["answer"]) for one in entries}
    assert {("view", "yes"), ("delayed", "yes"), ("log", "yes"), ("deleted mark", "no")} <= answers
    by_name = site.cli.json("mail", "trace", deferred["name"])
    assert {("view", "yes"), ("delayed", "yes")} <= {
        (one["source"], one["answer"]) for one in by_name
    }


def test_a_dead_letter_has_its_reason_in_the_log_and_in_the_queue(site: Site) -> None:
    enqueue_id = site.send(DAVE)
    until(lambda: "dead_letter" in [one["event"] for one in site.events(enqueue_id)], "it died")
    letter = site.events(enqueue_id)[-1]
    assert letter["why"] == "the next hop refused all recipients for good: 550 for 1"
    assert letter["answer"] == "550 5.1.1 no such user (for 1)"
    entries = site.cli.json("mail", "trace", enqueue_id)
    says = {one["source"]: one["says"] for one in entries if one["answer"] == "yes"}
    assert "refused all recipients for good" in says["dead letters"]


def test_a_mail_that_nobody_knows_is_exit_2_and_a_store_that_is_away_exit_4(site: Site) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    answer = site.cli("mail", "trace", unknown, "--json", code=2)
    assert {one["answer"] for one in answer.lines} == {"no"}
    away = site.cli.but(MAILSLICE_CASSANDRA_PORT=str(free_port()), MAILSLICE_CASSANDRA_TIMEOUT="1s")
    answer = away("mail", "trace", unknown, "--json", code=4)
    by_source = {one["source"]: one["answer"] for one in answer.lines}
    assert by_source["view"] == by_source["deleted mark"] == "unknown"
    assert by_source["dead letters"] == "no"


def test_promtool_takes_every_scrape(site: Site) -> None:
    for process in ("worker", "smtp-in", "exporter"):
        text = site.scrape(process)
        done = subprocess.run(
            [promtool(), "check", "metrics"], input=text.encode(), capture_output=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, b""), process
        assert "mailslice_" in text


def test_no_label_is_an_id_or_an_address(site: Site) -> None:
    scrapes = "".join(map(site.scrape, ("worker", "smtp-in", "exporter")))
    names = set(re.findall(r'[{,]([a-z_]+)="', scrapes))
    assert names <= {
        *("queue", "outcome", "le", "code", "of", "store", "kind", "state", "duty", "alert"),
        *("minutes", "rule", "answer", "verdict", "health"),
    }
    assert "@" not in scrapes


def test_rules_and_dashboards_use_only_what_a_scrape_has(site: Site) -> None:
    site.send(CAROL)  # deferred: a live mail
    site.cli("duty", "run", "queue_size", "--queue", "out")
    oldest = "mailslice_queue_oldest_mail_age_seconds"
    until(lambda: oldest in site.scrape("exporter"), "a measurement of a queue with mail")
    scrapes = "".join(map(site.scrape, ("worker", "smtp-in", "exporter")))
    has = set(re.findall(r"^(mailslice_\w+)", scrapes, re.MULTILINE))
    not_here = {"mailslice_audit_mails"}  # an audit takes minutes
    # A Postal has a test of its own: tests/services/postal/test_monitoring.py.
    for file in [DOCS / "prometheus" / "alerts.yaml", *(DOCS / "grafana").glob("*.json")]:
        used = set(re.findall(r"\bmailslice_[a-z_]+\b", expressions(file)))
        assert used, file
        used = {name for name in used if not name.startswith("mailslice_postal_")}
        assert used <= has | not_here, (file.name, used - has)


def test_a_scrape_answers_while_stores_are_away(site: Site, tmp_path: Path) -> None:
    port, nobody = free_port(), str(free_port())
    environ = {
        **site.cli.env,
        "PATH": os.environ["PATH"],
        "MAILSLICE_CASSANDRA_PORT": nobody,
        "MAILSLICE_S3_ENDPOINT": f"http://127.0.0.1:{nobody}",
        "MAILSLICE_S3_TIMEOUT": "1s",
        "MAILSLICE_CASSANDRA_TIMEOUT": "1s",
    }
    command = [str(MAILSLICE), "exporter", "--port", str(port), "--interval", "1s"]
    with (tmp_path / "log").open("wb") as stderr:
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.DEVNULL, stderr=stderr, cwd=tmp_path
        )
    try:
        up = 'mailslice_exporter_up{store="rabbitmq"} 1.0'
        until(lambda: up in fetch(port, "/metrics")[1], "RabbitMQ's figures")
        down = 'mailslice_exporter_up{store="cassandra"} 0.0'
        assert down in fetch(port, "/metrics")[1]
        assert "mailslice_queue_size" not in fetch(port, "/metrics")[1]
        assert fetch(port, "/livez")[0] == 200
        status, body = fetch(port, "/readyz")
        assert (status, "cassandra" in json.loads(body)["down"]) == (503, True)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def expressions(file: Path) -> str:
    """The PromQL of a rule file or a dashboard."""
    if file.suffix == ".json":
        board = json.loads(file.read_text())
        return "\n".join(
            target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
        )
    return "\n".join(re.findall(r"^ +expr: (.*(?:\n {10,}.*)*)", file.read_text(), re.MULTILINE))
