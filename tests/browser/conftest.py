"""Chromium and a cockpit for it. Chromium is Debian's: Playwright has no own one here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, sync_playwright

from mailslice.cockpit.app import Schedule
from mailslice.cockpit.facts import Facts
from tests.acceptance.command import Cli
from tests.browser.serving import served, site
from tests.browser.visitor import USUAL, Visitor
from tests.browser.world import world

MISSING = (
    "these tests need a browser: apt-get install -y --no-install-recommends chromium "
    "fonts-dejavu-core (make soak does it as root)"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, headless. No other test can run a loop while playwright is open."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium) -> Iterator[Callable[..., Visitor]]:
    """A function: base address, role -> a visitor with a window of its own."""
    contexts = []

    def arrive(base: str, role: str = "viewer", **context: object) -> Visitor:
        size = {"width": context.pop("width", USUAL), "height": 900}
        contexts.append(chromium.new_context(viewport=size, **context))
        page = contexts[-1].new_page()
        page.set_default_timeout(15_000)
        return Visitor(page, f"{base}/{role}/mailslice")

    yield arrive
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def site_of_words(fresh_module) -> Iterator[str]:
    """The address of a site that shows a queue in each health word."""
    schedule = Schedule("*/15 * * * *", paused=False, next=datetime.now(UTC) + timedelta(minutes=9))
    with world(fresh_module.settings):
        facts = Facts(lambda: fresh_module.settings)
        with served(site(facts, lambda: {"queue_size": schedule})) as base:
            yield base
        facts.close()


@pytest.fixture(scope="module")
def measured(site_of_words, fresh_module) -> str:
    """The address of `site_of_words` after a measurement and the dry run of a cleanup."""
    cli = Cli(fresh_module.env).inside()
    cli("duty", "run", "queue_size", "--queue", "idle")
    cli("duty", "run", "queue_cleanup", "--queue", "idle", "--dry-run")
    return site_of_words
