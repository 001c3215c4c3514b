"""Listings of a queue in memory, by the route that answers them."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import Right
from mailslice.model.errors import BadSetting
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryStores
from mailslice.webadmin import queues
from mailslice.webadmin.app import webadmin
from tests.contracts.making import HOUR, NOW, row


@pytest.fixture
def stores():
    """Two live mails behind 300 that are done."""
    stores = MemoryStores(load_settings({}, state_file=Path("/nonexistent")))
    stores.rabbitmq.declare("spool")
    hours = (*[3] * 150, *[2] * 150, 1, 0)
    rows = [row("spool", NOW - one * HOUR, name=f"m{at}") for at, one in enumerate(hours)]
    stores.tables.v4.insert_many(rows)
    stores.tables.browse_starts.insert_first("spool", rows[0].partition.slice_start)
    stores.tables.deleted.mark_many("spool", [one.enqueue_id for one in rows[:-2]])
    return stores


@pytest.fixture
def client(stores):
    facts = Facts(lambda: stores.settings, lambda: NOW, open_stores=lambda _settings: stores)
    return TestClient(webadmin(queues.Queues(facts), None, dict.fromkeys(Right, lambda: None)))


def listed(client, query=""):
    answer = client.get(f"/mailQueues/spool/mails{query}")
    names = [one["name"] for one in answer.json()]
    return answer.status_code, names, answer.headers.get("Mailslice-Truncated")


def test_a_listing_that_came_to_the_end_is_whole(client):
    assert listed(client) == (200, ["m300", "m301"], None)
    assert listed(client, "?limit=1") == (200, ["m300"], "1")


def test_a_listing_ends_in_time_among_dead_rows_and_says_that_it_is_not_whole(client, monkeypatch):
    monkeypatch.setattr(queues, "MAX_SECONDS", -1.0)
    assert listed(client) == (200, [], "10000")
    assert listed(client, "?limit=7") == (200, [], "7")


def test_a_size_that_nobody_knows_closes_no_stores_that_other_requests_use(stores, monkeypatch):
    opened = []

    def open_stores(_settings):
        opened.append(stores)
        return stores

    facts = Facts(lambda: stores.settings, lambda: NOW, open_stores=open_stores)
    monkeypatch.setattr(queues, "MAX_COUNTED", 1)
    monkeypatch.setattr(queues, "newest_report", lambda *_: None)
    client = TestClient(webadmin(queues.Queues(facts), None, dict.fromkeys(Right, lambda: None)))
    answers = [client.get("/mailQueues/spool") for _ in range(2)]
    assert [one.status_code for one in answers] == [503, 503]
    assert "was never measured" in answers[0].json()["message"]
    assert len(opened) == 1


def test_a_setting_of_mailslice_that_is_wrong_is_no_fault_of_the_request():
    def open_stores(_settings):
        raise BadSetting("MAILSLICE_S3_ACCESS_KEY=*** is refused")

    facts = Facts(lambda: load_settings({}), lambda: NOW, open_stores=open_stores)
    client = TestClient(webadmin(queues.Queues(facts), None, dict.fromkeys(Right, lambda: None)))
    answer = client.get("/mailQueues/spool")
    assert (answer.status_code, answer.json()["type"]) == (500, "ServerError")
    assert answer.json()["details"] == "MAILSLICE_S3_ACCESS_KEY=*** is refused"
