"""The hot path: enqueue, dequeue, complete; the consumer process, handlers, SMTP in. Drivers are imported when a name below is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mailslice.worker.delivery import Delivery
    from mailslice.worker.dequeuer import Deliveries
    from mailslice.worker.outcome import Complete, Outcome, Reject, Retry
    from mailslice.worker.queue_worker import QueueWorker, open_worker

__all__ = ["Complete", "Deliveries", "Delivery", "Outcome", "QueueWorker", "Reject", "Retry", "open_worker"]

_HOMES = {
    "Complete": "outcome",
    "Deliveries": "dequeuer",
    "Delivery": "delivery",
    "Outcome": "outcome",
    "QueueWorker": "queue_worker",
    "Reject": "outcome",
    "Retry": "outcome",
    "open_worker": "queue_worker",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
