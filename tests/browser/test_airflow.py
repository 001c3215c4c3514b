"""The cockpit inside a real Airflow, as a person at a browser meets it: a cleanup that asks before
it applies, a redrive, the report of a run and its Data Docs.

`MAILSLICE_TEST_SCREENSHOTS=FOLDER` keeps pictures of the way: those of docs/screenshots.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from mailslice.admin import queues
from mailslice.admin.mail_queue import MailQueue
from mailslice.maintenance.ledger import Ledger
from mailslice.model.clock import system_clock
from mailslice.stores import open_stores
from mailslice.worker.outcome import Reject
from mailslice.worker.sync_queue import open_queue
from tests.acceptance.airflow_process import airflow_standalone
from tests.browser.world import enqueue, mail
from tests.contracts.making import row

DAGS = ("queue_cleanup", "dead_letters")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def airflow(stores, fresh_module, tmp_path_factory):
    home = tmp_path_factory.mktemp("airflow") / "home"
    with airflow_standalone(home, fresh_module.env, dags=DAGS) as running:
        yield running


@pytest.fixture
def page(airflow, chromium):
    """A window of the user admin, who is logged in."""
    context = chromium.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{airflow.url}/auth/login")
    page.fill("[name=username]", "admin")
    page.fill("[name=password]", "admin")
    page.click("button[type=submit]")
    page.wait_for_url(re.compile(r"/$"))
    yield page
    context.close()


def cockpit(page, airflow):
    """The frame of the page Mail queues, reached by Airflow's side bar."""
    page.goto(f"{airflow.url}/")
    page.get_by_role("link", name="Mail queues").click()
    return page.frame_locator("iframe")


def picture(page, name: str) -> None:
    """Keep what is seen, where somebody asks for it."""
    if folder := os.environ.get("MAILSLICE_TEST_SCREENSHOTS"):
        page.wait_for_timeout(1500)  # Airflow draws its frames anew
        page.screenshot(path=Path(folder) / f"{name}.png")


def with_dead_rows(stores, queue):
    """A slice of nine dead rows and a live one, and a slice of ten dead ones before it."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    starts = [hour - timedelta(hours=9), hour - timedelta(hours=7)]
    for start, dead in zip(starts, (10, 9), strict=True):
        rows = [row(queue, start + timedelta(minutes=10)) for _ in range(10)]
        stores.tables.v4.insert_many(rows)
        stores.tables.deleted.mark_many(queue, [one.enqueue_id for one in rows[:dead]])
    stores.tables.browse_starts.insert_first(queue, starts[0])
    stores.tables.content_starts.insert_first(queue, starts[0])


def sizes(stores, queue):
    """(live, dead) of each slice."""
    return [(one.live, one.dead) for one in MailQueue(stores, queue, system_clock).slices()]


def ask_for_cleanup(page, airflow, queue):
    """Start a run that asks; the frame, when the question is on the page Maintenance."""
    frame = cockpit(page, airflow)
    frame.get_by_role("link", name="Maintenance").click()
    frame.get_by_role("row", name=re.compile("^queue_cleanup")).get_by_role("button").click()
    dialog = frame.get_by_role("dialog")
    dialog.locator("[name=queues]").fill(queue)
    dialog.locator("[name=dry_run]").uncheck()
    dialog.locator("[name=approve]").check()
    dialog.locator("[name=reason]").fill("the disk is full")
    picture(page, "cleanup-params")
    dialog.get_by_role("button", name="Start").click()
    asked = frame.get_by_role("region", name="Plans that wait for a person")
    link = asked.get_by_role("link", name=f"queue_cleanup: apply the plan of queue '{queue}'?")
    expect(link).to_be_visible(timeout=180_000)
    return frame, link


def test_a_cleanup_is_applied_when_a_person_says_yes(airflow, stores, page, fresh_module):
    queue = queues.create(stores, "spool")
    with_dead_rows(stores, queue)
    frame, link = ask_for_cleanup(page, airflow, queue)
    assert sizes(stores, queue) == [(0, 10), (1, 9)]
    picture(page, "plan-waiting")
    link.click()
    expect(page.locator("body")).to_contain_text("this plan is applied", timeout=60_000)
    picture(page, "cleanup-approval")
    page.get_by_role("button", name="Approve").click()

    (run,) = (
        one["dag_run_id"] for one in airflow.api("GET", "dags/queue_cleanup/dagRuns")["dag_runs"]
    )
    states = airflow.wait("queue_cleanup", run)
    assert {state for (task, _), state in states.items() if task != "queues"} == {"success"}
    assert sizes(stores, queue) == [(1, 9)]
    report = Ledger(stores, fresh_module.settings).last("queue_cleanup", queue)
    assert (report["status"], report["applied"], report["who"]) == ("done", 10, "admin")

    frame = cockpit(page, airflow)
    frame.get_by_role("link", name="Maintenance").click()
    expect(frame.get_by_role("row", name=re.compile("^queue_cleanup"))).to_contain_text("done")
    expect(frame.get_by_role("region", name="Plans that wait for a person")).to_have_count(0)
    frame.get_by_role("link", name="queue_cleanup", exact=True).last.click()
    expect(page).to_have_url(re.compile(r"/dags/queue_cleanup/runs/"))
    page.get_by_text("Queue report").click()
    report_frame = page.frame_locator("iframe")
    expect(report_frame.locator("h1")).to_have_text("Report of this run")
    expect(report_frame.locator("main")).to_contain_text("the disk is full")
    picture(page, "cleanup-run")
    report_frame.get_by_role("link", name="Data Docs").click()
    expect(report_frame.locator("h1")).to_have_text(re.compile("^PASS"))
    picture(page, "data-docs")


def test_nothing_is_applied_when_a_person_says_no(airflow, stores, page, fresh_module):
    queue = queues.create(stores, "outgoing")
    with_dead_rows(stores, queue)
    _, link = ask_for_cleanup(page, airflow, queue)
    link.click()
    expect(page.locator("body")).to_contain_text("this plan is applied", timeout=60_000)
    page.get_by_role("button", name="Reject").click()
    runs = airflow.api("GET", "dags/queue_cleanup/dagRuns?order_by=-start_date")["dag_runs"]
    airflow.wait("queue_cleanup", runs[0]["dag_run_id"])
    assert sizes(stores, queue) == [(0, 10), (1, 9)]
    report = Ledger(stores, fresh_module.settings).last("queue_cleanup", queue)
    assert report["status"] == "refused"
    assert "rejected by" in report["message"]


def test_dead_letters_are_redriven_by_the_button(airflow, stores, page, fresh_module):
    queue = queues.create(stores, "letters")
    enqueue(fresh_module.settings, queue, [(timedelta(0), mail(name)) for name in ("one", "two")])
    with open_queue(queue, fresh_module.settings) as opened:
        opened.consume(lambda _mail, _content: Reject("550 no such user"), most=2)
    frame = cockpit(page, airflow)
    frame.get_by_role("link", name="letters").first.click()
    frame.get_by_role("link", name="Set aside").click()
    frame.get_by_role("button", name="Redrive dead letters…").click()
    dialog = frame.get_by_role("dialog")
    assert dialog.locator("[name=queues]").input_value() == "letters"
    dialog.locator("[name=dry_run]").uncheck()
    dialog.locator("[name=redrive]").check()
    dialog.get_by_role("button", name="Start").click()
    following = frame.locator("#following")
    expect(following).to_contain_text("success", timeout=480_000)
    report = Ledger(stores, fresh_module.settings).last("dead_letters", queue)
    assert (report["status"], report["applied"], report["who"]) == ("done", 2, "admin")
    with open_queue(queue, fresh_module.settings) as opened:
        names = []
        opened.consume(lambda mail, _content: names.append(mail.name), most=2)
    assert sorted(names) == ["one", "two"]
