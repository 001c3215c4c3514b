"""What the last run in shadow mode would have done: its report says so, and no table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mailslice.maintenance.ledger import Ledger
from mailslice.model.mail import QueueName
from mailslice.model.settings import StuckMode

if TYPE_CHECKING:
    from mailslice.maintenance.run import Run
    from mailslice.stores import Stores

_NEWEST = 20


def noted(stores: Stores, queue: QueueName) -> list[dict[str, Any]]:
    """The mails of the newest report whose run came to act, when it was in shadow mode.

    With `run` and `who` of that report. `decided` is when a mail was found so first.
    """
    reports = Ledger(stores, stores.settings).list("stuck_mails", queue, _NEWEST)
    last = next((report for report in reports if "noted" in report), None)
    if last is None or last["mode"] != StuckMode.SHADOW:
        return []
    common = {"run": last["run"], "who": last["who"], "decided": last["finished"]}
    return [{**common, **mail} for mail in last["mails"]]


def noted_before(run: Run) -> Mapping[str, datetime]:
    """Enqueue id -> since when an earlier run in shadow mode says so."""
    return {
        mail["enqueueId"]: datetime.fromisoformat(mail["decided"])
        for mail in noted(run.stores, run.queue)
        if mail["run"] != run.request.run
    }
