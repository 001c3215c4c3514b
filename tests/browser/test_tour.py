"""The tour of a night shift: find a mail, see why it waits, act on it, find the run, take it back.

What starts runs of Airflow is a double that does the run at once; `test_airflow_actions` has the
real one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import expect

from mailslice.admin import queues
from mailslice.cockpit.facts import Facts
from mailslice.stores import open_stores
from tests.acceptance.command import Cli
from tests.browser.serving import Runs, served, site
from tests.browser.visitor import NARROW
from tests.browser.world import enqueue, mail
from tests.services.hop_queue import consumed

pytestmark = pytest.mark.soak


@pytest.fixture
def cli(fresh) -> Cli:
    return Cli(fresh.env).inside()


@pytest.fixture
def address(fresh) -> Iterator[str]:
    """A site whose buttons act, with the queues spool and outgoing."""
    with open_stores(fresh.settings) as stores:
        for queue in ("spool", "outgoing"):
            queues.create(stores, queue)
        mails = [(timedelta(hours=3), mail("oldest", to="c@mills.example"))]
        mails += [(timedelta(minutes=9 - n), mail(f"spam-{n}", "x@spam.example")) for n in (1, 2)]
        enqueue(fresh.settings, "spool", [*mails, (timedelta(minutes=1), mail("invoice"))])
        facts = Facts(lambda: fresh.settings)
        with served(site(facts, runs=Runs(fresh.settings))) as base:
            yield base
        facts.close()


def names(cli: Cli, queue: str = "spool") -> list[str]:
    return sorted(line["name"] for line in cli.json("queue", "browse", queue))


def confirm(page, button: str, reason: str, seconds: float = 10) -> None:
    """Give the reason in the open dialog, and start; the double's run is over with that."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=re.compile(f"^{button}")).click()
    expect(dialog).to_have_count(0, timeout=seconds * 1000)


def test_the_oldest_mail_is_seen_and_spam_is_deleted_by_filter_and_undone(address, visit, cli):
    visitor = visit(address, "op")
    page = visitor.go()
    expect(visitor.row("spool")).to_contain_text("NO WORKERS", timeout=60_000)
    visitor.row("spool").locator("a.name").click()
    page.locator("#tab a.name").first.click()
    expect(page.locator("h1")).to_have_text("oldest")
    expect(page.get_by_role("region", name="Why it waits")).to_contain_text("Nobody consumes")
    page.get_by_role("link", name="spool").click()
    page.get_by_label("Sender").fill("*@spam.example")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#tab")).to_contain_text("2 mails, the oldest first")
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Delete: 2 mails of spool")
    expect(dialog).to_contain_text("50.0 % of the queue")
    expect(dialog.locator("tbody tr")).to_have_count(2)
    confirm(page, "Delete: 2 mails", "flood of the night")
    following = page.locator("#following")
    expect(following).to_contain_text("2 deleted", timeout=30_000)
    run = following.get_by_role("link", name="open its page")
    assert re.search(r"dags/mail_actions/runs/manual__1$", run.get_attribute("href"))
    assert names(cli) == ["invoice", "oldest"]
    expect(page.locator("#tab")).to_contain_text("No mail matches.")
    following.get_by_role("button", name="Undo").click()
    expect(following).to_contain_text("2 brought back", timeout=30_000)
    assert names(cli) == ["invoice", "oldest", "spam-1", "spam-2"]
    decisions = cli.json("decisions", "list", "--queue", "spool")
    (decision,) = (one for one in decisions if one["action"] == "queue delete")
    assert (decision["who"], decision["reason"]) == ("op", "flood of the night")
    assert visitor.complaints == []


def test_a_domain_is_held_and_released(address, visit, cli):
    visitor = visit(address, "op")
    page = visitor.go("queue?name=spool&tab=history")
    page.get_by_role("button", name="Hold…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Domain").fill("mills.example")
    dialog.get_by_label("For", exact=False).nth(0).fill("2h")
    confirm(page, "Hold", "their server is being moved")
    expect(page.locator("#following")).to_contain_text("1 held", timeout=30_000)
    (hold,) = cli.json("queue", "holds", "spool")
    assert (hold["domain"], hold["who"], hold["until"] is None) == ("mills.example", "op", False)
    held = page.get_by_role("group", name="Act on the queue")
    expect(held).to_contain_text("their server is being moved", timeout=40_000)
    held.get_by_role("button", name="Release").click()
    expect(page.locator("#following")).to_contain_text("1 released", timeout=30_000)
    assert cli.json("queue", "holds", "spool") == []
    assert visitor.complaints == []


def test_ticked_mails_are_delayed_and_moved(address, visit, cli, fresh):
    visitor = visit(address, "op", width=NARROW)
    page = visitor.go("queue?name=spool")
    page.get_by_label("Tick oldest").check()
    expect(page.locator("[data-chosen]")).to_have_text("The 1 ticked:")
    with open_stores(fresh.settings) as stores, consumed(stores, "spool"):
        page.get_by_label("How long the mails wait").fill("2h")
        page.get_by_role("button", name="Delay…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("They wait for 2h from the start of the run.")
        assert visitor.overflow() == 0
        confirm(page, "Delay: 1 mail", "later")
        expect(page.locator("#following")).to_contain_text("1 delayed", timeout=60_000)
    (late,) = (line for line in cli.json("queue", "browse", "spool") if line["nextDelivery"])
    assert late["name"] == "oldest"
    page = visitor.go("queue?name=spool&mail=invoice")
    page.get_by_role("button", name="Move…").click()
    expect(page.get_by_role("dialog")).to_contain_text("They go to outgoing")
    confirm(page, "Move: 1 mail", "wrong queue")
    expect(page.locator("#following")).to_contain_text("1 moved", timeout=60_000)
    assert names(cli, "outgoing") == ["invoice"]
    assert visitor.complaints == []
