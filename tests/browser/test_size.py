"""Fifty queues and 100,000 waiting mails: what a person looks for among them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from mailslice.bench.own_mails import BENCH_NAMES
from mailslice.cockpit.facts import Facts
from mailslice.model.mail import QueueName
from mailslice.stores import open_stores
from stack.cockpit_bench import Size, fill
from tests.browser.serving import Runs, served, site

pytestmark = pytest.mark.soak

SIZE = Size(queues=50, rows=150_000, waiting=100_000)
EACH = SIZE.waiting // SIZE.queues
QUEUES = [f"spool-{number:02}" for number in range(SIZE.queues)]


@pytest.fixture(scope="module")
def address(fresh_module) -> Iterator[str]:
    with open_stores(fresh_module.settings) as stores:
        fill(stores, [QueueName(queue) for queue in QUEUES], SIZE)
    facts = Facts(lambda: fresh_module.settings)
    with served(site(facts, runs=Runs(fresh_module.settings))) as base:
        yield base
    facts.close()


def test_fifty_queues_have_a_line_each(address, visit):
    visitor = visit(address)
    visitor.go()
    assert visitor.words() == ["NO WORKERS"] * SIZE.queues
    for queue in (QUEUES[0], QUEUES[-1]):
        expect(visitor.row(queue).locator("td[data-label=Waiting]")).to_contain_text(f"{EACH:,}")
    assert visitor.complaints == []


def test_a_mail_among_all_is_found_and_the_list_is_paged(address, visit):
    visitor = visit(address, "op")
    page = visitor.go(f"queue?name={QUEUES[7]}")
    seen = set(visitor.names())
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("#tab")).to_contain_text("Further mails")
    assert len(seen | set(visitor.names())) == 200
    page.get_by_label("Name", exact=True).fill(f"{BENCH_NAMES}1234")
    page.get_by_role("button", name="Filter").click()
    only = page.locator("#tab td a.name")
    expect(only).to_have_text([f"{BENCH_NAMES}1234"], timeout=30_000)  # the page looks on by itself
    page.locator("#tab td a.name").click()
    expect(page.locator("h1")).to_have_text(f"{BENCH_NAMES}1234")
    assert visitor.complaints == []


def test_all_mails_of_a_queue_are_previewed_and_exported(address, visit):
    visitor = visit(address, "op")
    page = visitor.go(f"queue?name={QUEUES[7]}")
    page.get_by_label("Sender").fill("alice@*")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(
        re.compile(f"Delete.*{EACH:,} mails of {QUEUES[7]}"), timeout=60_000
    )
    expect(dialog).to_contain_text("100.0 % of the queue")
    page.keyboard.press("Escape")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export what matches as CSV").click()
    with Path(download.value.path()).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == EACH + 1
    assert visitor.complaints == []
