"""A user at a browser: one role, one window, and the errors of the browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page

NARROW, USUAL, WIDE = 400, 1280, 2000

_CHECKS = Path(__file__).with_name("checks.js").read_text(encoding="utf-8")


@dataclass
class Visitor:
    """`complaints`: console errors, failed scripts, and dialogs that a script opened."""

    page: Page
    base: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dialog)

    def go(self, address: str = "") -> Page:
        """Opens an address of the cockpit, relative to its base."""
        answer = self.page.goto(f"{self.base}/{address}")
        assert answer is not None
        assert answer.status == 200, f"{address}: {answer.status} {answer.text()[:500]}"
        return self.page

    def row(self, queue: str) -> Locator:
        """The row of a queue in the overview."""
        return self.page.locator(f'tr[data-queue="{queue}"]')

    def words(self) -> list[str]:
        """The health words of the overview, in its order."""
        return self.page.locator("table.queues td[data-label=Health]").all_inner_texts()

    def names(self) -> list[str]:
        """The names of the mails in the list, in its order."""
        return self.page.locator("#tab td a.name").all_inner_texts()

    def unnamed(self) -> list[str]:
        """Fields, buttons and links without an accessible name for a screen reader."""
        return list(self._check("unnamed"))

    def pale(self) -> list[str]:
        """Texts with less contrast than 4.5 to 1."""
        return list(self._check("pale"))

    def overflow(self) -> int:
        """CSS pixels by which the page is wider than its window."""
        return int(self._check("overflow"))

    def _check(self, name: str) -> Any:
        return self.page.evaluate(f"(() => {{ {_CHECKS}; return {name}(); }})()")

    def _heard(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} {message.location.get('url', '')}")

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"a script opened a dialog: {dialog.message}")
        dialog.dismiss()
