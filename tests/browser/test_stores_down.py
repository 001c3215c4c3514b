"""One store is away: every page answers in time, says which store, and shows what was known."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import expect

from mailslice.cockpit.facts import Facts
from mailslice.model.clock import system_clock
from mailslice.model.settings import Settings
from tests.acceptance.command import Cli
from tests.browser.serving import served, site
from tests.browser.world import enqueue, mail
from tests.ports import free_port

pytestmark = pytest.mark.soak

LIMIT = 8.0
"""Seconds in which each page has answered, a browser's own work included."""
PAGES = (
    "",
    "queue?name=spool",
    "queue?name=spool&tab=domains",
    "queue?name=spool&tab=slices",
    "queue?name=spool&tab=stuck",
    "queue?name=spool&tab=workers",
    "queue?name=spool&tab=history",
    "spark?name=spool",
    "count?name=spool",
    "maintenance",
    "?dag=queue_size&run=none",
    "api/queues",
)
SAID = {"Cassandra": "Cassandra at 127.0.0.1:", "RabbitMQ": "RabbitMQ", "S3": "S3"}


def away(store: str, port: int) -> dict[str, str]:
    """Settings that look for the store at a port."""
    return {
        "Cassandra": {
            "MAILSLICE_CASSANDRA_CONTACT_POINTS": "127.0.0.1",
            "MAILSLICE_CASSANDRA_PORT": str(port),
        },
        "RabbitMQ": {"MAILSLICE_RABBITMQ_MANAGEMENT_URL": f"http://guest:guest@127.0.0.1:{port}"},
        "S3": {"MAILSLICE_S3_ENDPOINT": f"http://127.0.0.1:{port}"},
    }[store]


@dataclass
class Deployment:
    """Stores that can go away, and time that can pass, under a site that stays up."""

    fresh: object
    settings: Settings
    later: timedelta = field(default=timedelta(0))

    def __post_init__(self) -> None:
        self.facts = Facts(lambda: self.settings, lambda: self.now)

    @property
    def now(self) -> datetime:
        return system_clock() + self.later

    def lose(self, store: str, port: int) -> None:
        self.settings = self.fresh.but(**away(store, port)).settings
        self.facts.close()
        self.later += timedelta(minutes=5)


@pytest.fixture
def deployment(fresh) -> Deployment:
    cli = Cli(fresh.env).inside()
    cli("queue", "create", "spool")
    enqueue(fresh.settings, "spool", [(timedelta(minutes=1), mail("tide", "a@example.org"))])
    cli("duty", "run", "queue_size", "--queue", "spool")
    return Deployment(fresh, fresh.settings)


@pytest.fixture
def address(deployment) -> Iterator[str]:
    with served(site(deployment.facts)) as base:
        yield base
    deployment.facts.close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield server.getsockname()[1]


def answers(visitor) -> dict[str, int]:
    """The status of every page, each within the limit."""
    found = {}
    for page in PAGES:
        began = time.monotonic()
        found[page] = visitor.page.request.get(f"{visitor.base}/{page}", timeout=60_000).status
        assert time.monotonic() - began < LIMIT, page
    return found


@pytest.mark.parametrize("store", ["Cassandra", "RabbitMQ"])
def test_the_last_known_figures_are_shown_with_their_age(deployment, address, visit, store):
    visitor = visit(address)
    page = visitor.go()
    # RabbitMQ's statistics are seconds late.
    expect(visitor.row("spool")).to_contain_text("NO WORKERS", timeout=40_000)
    deployment.lose(store, free_port())
    page = visitor.go()
    expect(page.get_by_role("alert").last).to_contain_text(SAID[store])
    expect(page.get_by_role("alert").last).to_contain_text("These are the last known figures.")
    expect(visitor.row("spool").locator("td[data-label=Waiting]")).to_contain_text("1 5 min")
    assert visitor.words() == ["NO WORKERS"]  # worse than UNKNOWN
    assert set(answers(visitor).values()) <= {200, 503}
    for tab in ("", "&tab=domains", "&tab=slices"):
        page = visitor.go(f"queue?name=spool{tab}")
        expect(page.locator("main .problem").first).to_contain_text(SAID[store])
        expect(page.locator(".tile").first).to_contain_text("5 min")


@pytest.mark.parametrize("store", ["Cassandra", "RabbitMQ", "S3"])
def test_a_page_that_begins_without_a_store_says_which(deployment, address, visit, store):
    visitor = visit(address)
    deployment.lose(store, free_port())
    page = visitor.go()
    found = answers(visitor)
    assert set(found.values()) <= {200, 503}
    assert (found[""], found["maintenance"]) == (200, 200)
    if store == "S3":
        assert set(found.values()) == {200}
        visitor.go("queue?name=spool")
        page.get_by_role("link", name="tide").click()
        expect(page.get_by_role("alert").last).to_contain_text("S3")
        expect(page.locator("main")).to_contain_text("a@example.org")
    else:
        expect(page.get_by_role("alert").last).to_contain_text(SAID[store])


def test_the_ledger_speaks_while_rabbitmq_is_away(deployment, address, visit):
    deployment.lose("RabbitMQ", free_port())
    visitor = visit(address)
    visitor.go()
    expect(visitor.row("spool")).to_contain_text("RabbitMQ did not answer")
    expect(visitor.row("spool").locator("td[data-label=Waiting]")).to_contain_text("1 5 min")


@pytest.mark.parametrize("store", ["Cassandra", "RabbitMQ"])
def test_a_store_that_takes_connections_and_says_nothing_delays_no_page_for_long(
    deployment, address, visit, silent_port, store
):
    visitor = visit(address)
    visitor.go()
    deployment.lose(store, silent_port)
    began = time.monotonic()
    page = visitor.go()
    assert time.monotonic() - began < LIMIT
    expect(page.get_by_role("alert").last).to_contain_text("These are the last known figures.")


def test_it_recovers_by_itself(deployment, address, visit):
    Cli(deployment.fresh.env).inside()("queue", "create", "other")  # the ledger does not know it
    deployment.lose("RabbitMQ", free_port())
    visitor = visit(address, "op")
    assert visitor.page.goto(f"{visitor.base}/queue?name=other").status == 503
    expect(visitor.page.locator("main")).to_have_attribute("data-refresh", "10")
    deployment.settings = deployment.fresh.settings
    deployment.facts.close()
    deployment.later += timedelta(minutes=5)
    expect(visitor.page.locator("h1")).to_have_text("other", timeout=40_000)
    expect(visitor.page.locator("main")).to_have_attribute("data-refresh", "0")
    expect(visitor.page).to_have_title("other · Mail queues")
    visitor.page.get_by_role("button", name="Hold…").click()
    expect(visitor.page.locator("#hold")).to_be_visible()
    visitor = visit(address)
    visitor.go()
    deployment.lose("RabbitMQ", free_port())
    page = visitor.go()
    expect(page.get_by_role("alert").last).to_contain_text("last known figures")
    deployment.settings = deployment.fresh.settings
    deployment.facts.close()
    deployment.later += timedelta(minutes=5)
    expect(page.locator("main .problem")).to_have_count(0, timeout=40_000)
    assert visitor.words()[0] == "NO WORKERS"
