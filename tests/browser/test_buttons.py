"""Buttons for mails that went astray: lost ones are put back, those set aside are decided on.

What starts runs of Airflow is a double that does the run at once; a redrive, and what waits for a
person's yes, are in `test_airflow.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import expect

from mailslice.admin import queues
from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.cockpit.facts import Facts
from mailslice.model.clock import system_clock
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores import open_stores
from mailslice.stores.rabbitmq.connection import blocking_connection
from tests.acceptance.command import Cli
from tests.browser.serving import Runs, served, site
from tests.browser.test_tour import confirm, names
from tests.browser.world import enqueue, mail

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
SPOOL = QueueName("spool")


@pytest.fixture
def cli(fresh) -> Cli:
    return Cli(fresh.env).inside()


@pytest.fixture
def stores(fresh):
    with open_stores(fresh.settings) as opened:
        queues.create(opened, SPOOL)
        yield opened


@pytest.fixture
def address(fresh, stores) -> Iterator[str]:
    del stores
    facts = Facts(lambda: fresh.settings)
    with served(site(facts, runs=Runs(fresh.settings))) as base:
        yield base
    facts.close()


def tile(page, text: str):
    """The figure above the list that has these words below it."""
    return page.locator(".tile", has_text=text).locator("b")


def test_lost_mails_are_proved_and_put_back(address, visit, cli, fresh):
    ages = [(timedelta(hours=3), mail("lost-1")), (timedelta(hours=2), mail("lost-2"))]
    enqueue(fresh.settings, "spool", ages)
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        connection.channel().queue_purge(RabbitNames(SPOOL).work_queue)
    visitor = visit(address, "op")
    page = visitor.go("queue?name=spool")
    following, dialog = page.locator("#following"), page.get_by_role("dialog")
    for accepted, says in ((False, "0 put back, 2 perhaps delivered"), (True, "2 put back")):
        page.get_by_role("button", name="Republish lost…").click()
        dialog.get_by_label("Older than").fill("1h")
        dialog.get_by_label("Accept duplicates").set_checked(accepted)
        confirm(page, "Audit and republish", "the broker's disk was lost", seconds=400)
        expect(following).to_contain_text(says, timeout=20_000)
    assert sorted(names(cli)) == ["lost-1", "lost-2"]
    decisions = cli.json("decisions", "list", "--queue", "spool")
    assert "the broker's disk was lost" in {one["reason"] for one in decisions}
    assert visitor.complaints == []


def test_mails_set_aside_are_released_and_discarded(address, visit, cli, fresh, stores):
    quarantine = Quarantine(stores, SPOOL, system_clock)
    aside = [(timedelta(hours=2), mail(name)) for name in ("good", "bad", "unsure")]
    for item in enqueue(fresh.settings, "spool", aside):
        hour = timedelta(hours=1)
        holder = Holder("host:1:abc", "loaded", system_clock() - hour, hour)
        decided = Decided("closed", "held for 1h, allowed are 10m", "tester")
        quarantine.settle(quarantine.keep(item, holder, decided))
        stores.tables.deleted.mark_many(SPOOL, [item.enqueue_id])
    visitor = visit(address, "op")
    page = visitor.go("queue?name=spool&tab=stuck")
    following, tab = page.locator("#following"), page.locator("#tab")
    expect(tab.locator("tbody tr")).to_have_count(3)

    page.get_by_label("Tick good").check()
    page.get_by_role("button", name="Release…").click()
    confirm(page, "Release", "the next hop is back")
    expect(following).to_contain_text("1 released", timeout=60_000)
    expect(tab.locator("tbody tr")).to_have_count(2)
    expect(tile(page, "waiting")).to_have_text("1")
    assert names(cli) == ["good"]

    page.get_by_label("Tick bad").check()
    page.get_by_role("button", name="Discard…").click()
    confirm(page, "Discard", "a virus")
    expect(following).to_contain_text("1 discarded", timeout=60_000)
    expect(tab.locator("tbody tr")).to_have_count(1)
    assert [one.name for one in quarantine.waiting()] == ["unsure"]
    assert names(cli) == ["good"]
    assert visitor.complaints == []


def test_the_tick_for_all_releases_no_mail_that_was_completed_unless_it_is_ticked_by_itself(
    address, visit, cli, fresh, stores
):
    quarantine = Quarantine(stores, SPOOL, system_clock)
    aside = [(timedelta(hours=2), mail(name)) for name in ("hung", "done")]
    for item in enqueue(fresh.settings, "spool", aside):
        holder = Holder("host:1:abc", "loaded", system_clock(), timedelta(hours=1))
        decided = Decided("closed", "held for 1h, allowed are 10m", "tester")
        row = quarantine.settle(quarantine.keep(item, holder, decided))
        stores.tables.deleted.mark_many(SPOOL, [item.enqueue_id])
        if item.mail.name == "done":
            quarantine.finished(row, system_clock())
    visitor = visit(address, "op")
    page = visitor.go("queue?name=spool&tab=stuck")
    following, tab = page.locator("#following"), page.locator("#tab")
    page.get_by_label("Tick every mail of this page").check()
    page.get_by_role("button", name="Release…").click()
    confirm(page, "Release", "the next hop is back")
    expect(following).to_contain_text("1 released", timeout=60_000)
    expect(tab.locator("tbody tr")).to_have_count(1)
    assert names(cli) == ["hung"]

    page.get_by_label("Tick done").check()
    page.get_by_role("button", name="Release…").click()
    confirm(page, "Release", "it was not sent")
    expect(tab.locator("tbody tr")).to_have_count(0, timeout=60_000)
    assert names(cli) == ["done", "hung"]
    assert visitor.complaints == []


def test_nothing_ticked_acts_on_nothing(address, visit, fresh, stores):
    quarantine = Quarantine(stores, SPOOL, system_clock)
    (item,) = enqueue(fresh.settings, "spool", [(timedelta(hours=2), mail("aside"))])
    holder = Holder("host:1:abc", "loaded", system_clock(), timedelta(hours=1))
    quarantine.settle(quarantine.keep(item, holder, Decided("closed", "held for 1h", "tester")))
    stores.tables.deleted.mark_many(SPOOL, [item.enqueue_id])
    visitor = visit(address, "op")
    page = visitor.go("queue?name=spool&tab=stuck")
    page.get_by_role("button", name="Discard…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("all of them")
    dialog.get_by_role("button", name="Discard", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text(
        "ids: allowed is a list of enqueue ids, not empty"
    )
    assert [one.name for one in quarantine.waiting()] == ["aside"]


def test_the_figures_above_the_list_are_those_after_the_act(address, visit, fresh):
    enqueue(fresh.settings, "spool", [(timedelta(minutes=5), mail(f"m{n}")) for n in (1, 2, 3)])
    visitor = visit(address, "op")
    page = visitor.go("queue?name=spool&mail=m1")
    expect(tile(page, "waiting")).to_have_text("3")
    page.get_by_role("button", name="Delete…").click()
    confirm(page, "Delete: 1 mail", "a test")
    expect(page.locator("#following")).to_contain_text("1 deleted", timeout=30_000)
    expect(tile(page, "waiting")).to_have_text("2")
    assert page.url.endswith("mail=m1")
    assert visitor.complaints == []


def test_a_run_is_followed_though_a_look_at_it_failed(address, visit, fresh):
    enqueue(fresh.settings, "spool", [(timedelta(minutes=5), mail("m1"))])
    page = visit(address, "op").go("queue?name=spool&mail=m1")
    for looked_at in ("**/dagRuns/*", "**/result?*"):
        page.route(looked_at, lambda route: route.abort(), times=1)
    page.get_by_role("button", name="Delete…").click()
    confirm(page, "Delete: 1 mail", "a test")
    page.route("**/queue?*", lambda route: route.abort())  # the page is not renewed either
    following = page.locator("#following")
    expect(following).to_contain_text("1 deleted", timeout=30_000)
    page.wait_for_timeout(5_000)  # two more looks, if there were any
    assert following.inner_text().count("1 deleted") == 1
