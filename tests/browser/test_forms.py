"""What the form of a duty sends to Airflow: names as they are, numbers or what was typed, once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi import Body, HTTPException
from playwright.sync_api import Page, expect

from mailslice.cockpit.facts import Facts
from mailslice.cockpit.rights import FOREIGN
from mailslice.maintenance.health import Health, HealthVerdict
from mailslice.maintenance.overview import QueueOverview
from mailslice.model.settings import Settings
from tests.browser.serving import served, site

pytestmark = pytest.mark.soak
QUEUE = "spool, eu "
"""A name that begins no list, and ends in a blank."""
PAGE = "queue?name=spool%2C%20eu%20&tab="


class Airflow:
    """Its API as far as the forms go: it takes runs, slowly, and refuses numbers that are none."""

    def __init__(self) -> None:
        self.confs: list[dict[str, Any]] = []

    async def start(self, dag: str, asked: dict[str, Any] = Body()) -> dict[str, str]:  # noqa: B008
        await asyncio.sleep(0.3)
        if isinstance(asked["conf"].get("max_share"), str):
            raise HTTPException(400, f"Invalid input for param max_share of {dag}")
        self.confs.append(asked["conf"])
        return {"dag_run_id": "manual__1"}


@pytest.fixture
def airflow() -> Airflow:
    return Airflow()


@pytest.fixture
def address(airflow) -> Iterator[str]:
    class Stores:
        def close(self) -> None: ...

        def existing_runs(self) -> None: ...

    none = {"size_at": None, "oldest": None, "enqueue_rate": None, "deliver_rate": None}
    names = ("size", "ready", "unacknowledged", "delayed", "parked", "dead_letters", "consumers")
    figures = {**none, **dict.fromkeys((*names, "workers"), 0)}
    one = QueueOverview(QUEUE, HealthVerdict(Health.OK, "empty"), reports={}, **figures)
    facts = Facts(
        Settings,
        clock=lambda: datetime.now(UTC),
        overviews=lambda *_: [one],
        open_stores=lambda _: Stores(),
    )
    outer = site(facts)
    api = "/far/away/{role}/api/v2/dags/{dag}"
    outer.add_api_route(api, lambda: {"is_paused": False})
    outer.add_api_route(f"{api}/dagRuns", airflow.start, methods=["POST"])
    outer.add_api_route(f"{api}/dagRuns/{{run}}", lambda: {"state": "success"})
    with served(outer) as base:
        yield base


def form(page: Page, button: str, row: str | None = None):
    """The dialog that the button opens."""
    within = page.get_by_role("row", name=re.compile(f"^{row}")) if row else page
    within.get_by_role("button", name=button).click()
    return page.get_by_role("dialog")


def test_a_queue_with_a_comma_in_its_name_is_one_queue(address, airflow, visit):
    visitor = visit(address, "user")
    page = visitor.go(PAGE + "history")
    form(page, "Run cleanup…").get_by_role("button", name="Start").click()
    expect(page.locator("#following")).to_contain_text("success")
    page.get_by_role("button", name="Measure now").click()
    expect(page.locator("#following")).to_contain_text("queue_size: success")
    assert [conf["queues"] for conf in airflow.confs] == [[QUEUE], [QUEUE]]
    assert visitor.complaints == []


@pytest.mark.parametrize(
    ("typed", "sent"),
    [("", None), (",", [","]), (" a\nb,c\n", [" a", "b,c", ""]), ("\n", ["", ""])],
)
def test_only_an_empty_field_means_every_queue(address, airflow, visit, typed, sent):
    page = visit(address, "user").go("maintenance")
    dialog = form(page, "Run…", "queue_cleanup")
    dialog.locator("[name=queues]").fill(typed)
    dialog.get_by_role("button", name="Start").click()
    expect(page.locator("#following")).to_contain_text("success")
    assert [conf.get("queues") for conf in airflow.confs] == [sent]


def test_what_is_no_number_is_not_the_default(address, airflow, visit):
    page = visit(address, "user").go("maintenance")
    dialog = form(page, "Run…", "blob_gc")
    dialog.locator("[name=max_share]").fill("0,01")
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Invalid input for param max_share")
    dialog.locator("[name=max_share]").fill("0.01")
    dialog.get_by_role("button", name="Start").click()
    expect(page.locator("#following")).to_contain_text("success")
    assert [conf["max_share"] for conf in airflow.confs] == [0.01]


def test_a_double_click_starts_one_run(address, airflow, visit):
    page = visit(address, "user").go("maintenance")
    form(page, "Run…", "dead_letters").get_by_role("button", name="Start").dblclick()
    expect(page.locator("#following")).to_contain_text("success")
    page.wait_for_timeout(800)
    assert len(airflow.confs) == 1


def test_a_write_that_is_not_of_this_site_is_not_called_a_lack_of_rights(address, visit):
    """As behind a proxy that puts its own Host into requests: Origin and Host differ."""
    page = visit(address, "op").go(PAGE + "history")
    page.route("**/act", lambda one: one.fulfill(status=403, json={"detail": FOREIGN}))
    dialog = form(page, "Hold…")
    dialog.get_by_label("Reason").fill("a test")
    dialog.get_by_role("button", name="Hold").click()
    expect(dialog.get_by_role("alert")).to_have_text(FOREIGN)


def test_who_types_into_the_search_goes_on_typing_after_a_refresh(address, visit):
    page = visit(address).go()
    page.locator("#search").press_sequentially("spo")
    page.evaluate("import('./static/cockpit.js').then((cockpit) => cockpit.renew())")
    page.keyboard.type("ol")
    expect(page.locator("#search")).to_have_value("spool")
