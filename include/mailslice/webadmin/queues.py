"""What the routes read of queues, and the flush. All reads are bounded.

The stores are opened once, and again after a store failed (`cockpit.facts`).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.admin.mail_queue import MailQueue
from mailslice.cockpit.facts import Facts
from mailslice.maintenance.decision_files import write_decision
from mailslice.maintenance.overview import newest_report
from mailslice.model.command_line import command_line
from mailslice.model.errors import BadInput, StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.names import queue_name
from mailslice.stores import Stores
from mailslice.view.live_rows import BrowseDeadline
from mailslice.webadmin.answers import instant, no_queue

MAX_COUNTED = 100_000
"""Most rows that a request counts: a second or two. Else the last measurement answers."""
MAX_SECONDS = 10.0
"""Longest time of a listing: where few mails are live it reads many dead rows."""


@dataclass(frozen=True, slots=True)
class Size:
    """Live mails, when they were counted; `measured`: by the duty queue_size, not just now."""

    mails: int
    at: datetime
    measured: bool = False


@dataclass(frozen=True, slots=True)
class MailListing:
    """The first mails of a queue; `truncated`: there may be more, see `Queues.mails`."""

    mails: Sequence[dict[str, Any]]
    truncated: bool


class Queues:
    """Safe to share between threads. Raises Halt 404 for a queue that RabbitMQ does not have."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def names(self) -> list[str]:
        """The names of all mail queues, sorted."""
        with self._facts.stores() as stores:
            return [str(name) for name in stores.rabbitmq.names()]

    def require(self, name: str) -> QueueName:
        """The name of a queue that is there."""
        with self._facts.stores() as stores:
            return _known(stores, name)

    def size(self, name: str) -> Size:
        """Exact, or for a large queue as it was last measured.

        Raises StoreUnavailable for a large one that was never measured: its size is unknown.
        """
        with self._facts.stores() as stores:
            queue = _known(stores, name)
            summary = MailQueue(stores, queue, lambda: self._facts.now).live_summary(MAX_COUNTED)
            if summary is not None:
                return Size(summary.size, self._facts.now)
            report = newest_report(stores, queue, "queue_size") or {}
        if report.get("size") is None:  # raised out here: within `stores()` it would close them
            raise StoreUnavailable(
                f"{queue} has more than {MAX_COUNTED} rows and was never measured: "
                f"`{command_line('duty run queue_size --queue', queue)}` measures it"
            )
        return Size(report["size"], datetime.fromisoformat(report["measuredAt"]), measured=True)

    def mails(self, name: str, limit: int, delayed: bool | None) -> MailListing:
        """The oldest mails as James lists them. As in James, `delayed` filters the first `limit`.

        Truncated when there are more than `limit`, or when ten seconds did not read all rows.
        """
        deadline = BrowseDeadline.in_seconds(MAX_SECONDS)
        with self._facts.stores() as stores:
            queue, now = _known(stores, name), self._facts.now
            mail_queue = MailQueue(stores, queue, lambda: now)
            rows = list(mail_queue.browse(limit=limit + 1, deadline=deadline))
            listed = [
                {
                    "name": row.item.mail.name,
                    "sender": row.item.mail.sender,
                    "recipients": list(row.item.mail.recipients),
                    "nextDelivery": instant(state.due) if state.due else None,
                }
                for row, state in stores.with_delays(queue, rows[:limit])
                if delayed in {None, state.due is not None and state.due > now}
            ]
            truncated = len(rows) > limit or deadline.stopped_at is not None
            return MailListing(listed, truncated)

    def flush(self, name: str, who: str, reason: str | None) -> int:
        """Deliver delayed mails now. Returns how many."""
        from mailslice.worker import retries

        queue, settings = self.require(name), self._facts.settings

        def record(flushed: int) -> None:
            by, facts = {"who": who, "action": "queue flush", "queue": queue}, {"flushed": flushed}
            write_decision(settings, self._facts.now, **by, reason=reason, facts=facts)

        return asyncio.run(retries.flush(settings, queue, record))


def _known(stores: Stores, name: str) -> QueueName:
    try:
        queue = queue_name(name)
    except BadInput:  # no queue can have this name, so there is none
        raise no_queue(name) from None
    if not stores.rabbitmq.exists(queue):
        raise no_queue(name)
    return queue
