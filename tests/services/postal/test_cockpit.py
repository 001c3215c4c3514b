"""The page of a deployment of Postal alone: what its runs say, and nothing of James is asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mailslice.cockpit.app import cockpit
from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Right
from mailslice.testing.postal.databases import FreshPostal
from mailslice.testing.postal.mails import Ended, PostalMails
from tests.acceptance.command import Cli
from tests.conftest import Fresh


def words_of(page: str) -> str:
    return " ".join(page.split())


@pytest.fixture
def cli(postal_env: Fresh) -> Cli:
    return Cli(postal_env.env).inside()


@pytest.fixture
def client(postal_env: Fresh) -> Any:
    facts = Facts(lambda: postal_env.settings)
    guards: Any = dict.fromkeys(Right, lambda: None)
    yield TestClient(cockpit(facts, guards, dag_of=lambda duty: f"eu_{duty}"))
    facts.close()


def test_before_the_first_run_nothing_is_known_and_nothing_is_made(
    client: TestClient, postal: FreshPostal
) -> None:
    page = words_of(client.get("/").text)
    assert "no run has read its queue yet" in page
    assert '<td data-label="Last look">never</td>' in page
    assert 'title="unknown">?</span>' in page
    assert postal.main.rows("SHOW DATABASES LIKE %s", postal.own) == []


def test_the_overview_shows_what_the_last_run_found(
    cli: Cli, client: TestClient, postal: FreshPostal, mails: PostalMails
) -> None:
    for _ in range(2):
        mails.mail(postal.servers[1], Ended.HEADERS, locked_for=timedelta(hours=5))
    mails.mail(postal.servers[2], Ended.LOCKED)
    cli("duty", "run", "stuck_mails_postal")
    page = words_of(client.get("/").text)
    for text in (
        '<span class="pill bad">STUCK</span>',
        'data-airflow="dags/eu_stuck_mails_postal" href="../dags/eu_stuck_mails_postal"',
        "<code>mailslice postal stuck</code>",
        "2 maybe sent, 1 before sending",
        '<td data-label="Found" class="number">3</td>',
        '<td data-label="Oldest lock" class="number">5 h</td>',
        '<td data-label="Mode">shadow</td>',
        "3 messages of Postal are stuck or gone, more than 0",
    ):
        assert text in page
    assert "RabbitMQ" not in page
    data = client.get("/api/queues").json()
    assert (data["queues"], data["postal"]["health"], data["postal"]["found"]) == ([], "STUCK", 3)
    assert client.get("/maintenance").status_code == 200


def test_the_quarantine_is_held(
    cli: Cli, client: TestClient, postal: FreshPostal, mails: PostalMails
) -> None:
    mails.mail(postal.servers[1], Ended.HEADERS)
    for _ in range(2):
        cli("duty", "run", "stuck_mails_postal", "--mode", "close")
    page = words_of(client.get("/").text)
    assert '<span class="pill ">HELD</span>' in page
    assert '<td data-label="Quarantine" class="number">1</td>' in page
