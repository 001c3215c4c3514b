"""Figures, alerts and the health word of a Postal, by its own runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mailslice.cli.exporter_samples import POSTAL_ALONE, Exporter
from mailslice.model.settings import clone_root
from mailslice.stores import open_stores
from mailslice.testing.postal.databases import FreshPostal
from mailslice.testing.postal.mails import Ended, PostalMails
from stack.promtool import promtool
from tests.acceptance.command import MAILSLICE, Cli
from tests.conftest import Fresh
from tests.ports import free_port

DOCS = clone_root() / "docs"


@pytest.fixture
def cli(postal_env: Fresh) -> Cli:
    return Cli(postal_env.env).inside()


@pytest.fixture
def stuck(postal: FreshPostal, mails: PostalMails) -> FreshPostal:
    """Two that may have been sent, one answered, one whose message is gone."""
    for _ in range(2):
        mails.mail(postal.servers[1], Ended.HEADERS)
    mails.mail(postal.servers[2], Ended.SENT)
    gone = mails.mail(postal.servers[2], Ended.LOCKED, locked_for=timedelta(hours=5))
    mails.lose_message(postal.servers[2], gone.message)
    return postal


def run(cli: Cli, *words: str) -> dict[str, Any]:
    return cli("duty", "run", "stuck_mails_postal", *words, "--json").lines[-1]


def scrape(env: Fresh) -> str:
    with open_stores(env.settings) as stores:
        exporter = Exporter(lambda: stores, 30, time.monotonic, POSTAL_ALONE)
        exporter.gather()
        return exporter.page()[2].decode()


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_shadow_run_has_figures_alerts_and_a_word(
    cli: Cli, stuck: FreshPostal, postal_env: Fresh
) -> None:
    report = run(cli)
    told = {alert["name"]: alert["text"] for alert in report["alerts"]}
    assert told == {"zombies": "4 messages of Postal are stuck or gone, more than 0"}
    found = samples(scrape(postal_env))
    assert found['mailslice_exporter_up{store="mariadb"}'] == 1
    assert found["mailslice_postal_queued_messages"] == 4
    assert found['mailslice_postal_found_messages{state="stuck"}'] == 3
    assert found['mailslice_postal_found_messages{state="message gone"}'] == 1
    assert found['mailslice_postal_stuck_messages{stage="maybe sent"}'] == 2
    assert found['mailslice_postal_stuck_messages{stage="answered"}'] == 1
    assert found['mailslice_postal_run_messages{outcome="closed"}'] == 0
    assert 5 * 3600 <= found["mailslice_postal_oldest_lock_seconds"] < 5 * 3600 + 60
    assert found["mailslice_postal_lock_timeout_seconds"] == 600
    assert 0 < found["mailslice_postal_sending_p99_seconds"] < 10
    assert found["mailslice_postal_quarantined_messages"] == 0
    assert found['mailslice_postal_health{health="LOST?"}'] == 1
    assert found['mailslice_postal_health{health="OK"}'] == 0
    assert found['mailslice_alert{alert="zombies",duty="stuck_mails_postal",queue=""}'] == 1
    shown = cli("postal", "health", "--json").one
    assert (shown["health"], shown["stuck"], shown["gone"]) == ("LOST?", 3, 1)
    assert (shown["mode"], shown["found"], shown["quarantined"]) == ("shadow", 4, 0)


def test_after_a_closing_the_quarantine_is_what_is_left(
    cli: Cli, stuck: FreshPostal, postal_env: Fresh
) -> None:
    report = run(cli, "--mode", "close")
    assert {alert["name"] for alert in report["alerts"]} == {"zombies", "lost"}
    found = samples(scrape(postal_env))
    outcomes = {"closed": 2, "completed": 1, "lost": 1, "retried": 0, "failed": 0}
    for outcome, count in outcomes.items():
        assert found[f'mailslice_postal_run_messages{{outcome="{outcome}"}}'] == count
    shown = cli("postal", "health", "--json").one
    assert (shown["health"], shown["quarantined"]) == ("HELD", 2)
    # It is there whatever the mode is, and however a run ends that has looked.
    run(cli, "--mode", "shadow")
    assert samples(scrape(postal_env))["mailslice_postal_quarantined_messages"] == 2
    run(cli, "--dry-run")
    assert samples(scrape(postal_env))["mailslice_postal_quarantined_messages"] == 2
    planned = cli("duty", "plan", "stuck_mails_postal", "--mode", "close", "--json").one["run"]
    cli("duty", "report", "stuck_mails_postal", "--run", planned, "--json")
    assert samples(scrape(postal_env))["mailslice_postal_quarantined_messages"] == 2
    assert cli("postal", "health", "--json").one["quarantined"] == 2
    cli("postal", "quarantine", "discard", "--all", "--yes")
    run(cli)
    assert cli("postal", "health", "--json").one["health"] == "OK"


def test_a_server_that_cannot_be_read_is_an_alert(
    cli: Cli, postal: FreshPostal, postal_env: Fresh
) -> None:
    postal.main.run(f"DROP DATABASE `{postal.servers[2].database}`")
    report = run(cli)
    assert [alert["name"] for alert in report["alerts"]] == ["unreadable"]
    unknown = "mailslice_postal_sending_p99_seconds"  # nothing was sent yet: absent, not zero
    assert unknown not in scrape(postal_env)
    shown = cli("postal", "health", "--json").one
    assert (shown["health"], shown["next"]) == ("UNKNOWN", "mailslice config check")


def test_looking_at_health_creates_nothing(cli: Cli, postal: FreshPostal) -> None:
    shown = cli("postal", "health", "--json").one
    assert (shown["health"], shown["lookedAt"]) == ("UNKNOWN", None)
    assert postal.main.rows("SHOW DATABASES LIKE %s", postal.own) == []


def test_the_text_file_of_a_run_is_what_the_exporter_says(
    cli: Cli, stuck: FreshPostal, postal_env: Fresh
) -> None:
    run(cli, "--mode", "close")
    folder = Path(postal_env.env["MAILSLICE_ARTIFACTS"]) / "metrics"
    text = (folder / "mailslice-postal.prom").read_text()
    known = samples(scrape(postal_env))
    assert samples(text).items() <= known.items()
    assert len(samples(text)) > 15


def test_promtool_takes_it_and_rules_and_boards_use_only_what_it_has(
    cli: Cli, stuck: FreshPostal, postal_env: Fresh, postal: FreshPostal
) -> None:
    for _ in range(100):
        postal.servers[1].session.insert(
            "deliveries", message_id=1, status="Sent", time=1.5, timestamp=1
        )
    run(cli)
    text = scrape(postal_env)
    command = [promtool(), "check", "metrics"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    has = set(re.findall(r"^(mailslice_postal_\w+)", text, re.MULTILINE))
    used: set[str] = set()
    for file in [DOCS / "prometheus" / "alerts.yaml", *(DOCS / "grafana").glob("*.json")]:
        used |= set(re.findall(r"\bmailslice_postal_[a-z_0-9]+\b", file.read_text()))
    assert used == has
    page = (DOCS / "monitoring.md").read_text()
    assert {name for name in has if name not in page} == set()


def test_the_exporter_serves_a_deployment_of_postal_alone(cli: Cli, postal_env: Fresh) -> None:
    run(cli)
    port = free_port()
    command = [str(MAILSLICE), "exporter", "--port", str(port), "--interval", "1s"]
    process = subprocess.Popen(command, env=postal_env.environ, stdout=subprocess.DEVNULL)
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline, ready = time.monotonic() + 60, {}
        while not ready.get("ready"):
            assert time.monotonic() < deadline, ready
            time.sleep(0.2)
            try:
                with opener.open(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                    ready = json.load(answer)
            except OSError as error:
                ready = {"error": str(error)}
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert 'mailslice_postal_health{health="OK"} 1.0' in answer.read().decode()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
