"""Which workers are counted beside a hold."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.admin import holds
from mailslice.model.holds import Hold
from mailslice.model.mail import EnqueueId
from mailslice.model.names import queue_name
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord
from mailslice.stores.cassandra.own.table import OwnTable

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SPOOL = queue_name("spool")
HELD = Hold(SPOOL, "", NOW - SECOND, None, "me", "a storm", "change")
MAIL = InFlightMail(EnqueueId(UUID(int=1)), "m", SECOND, "loaded", 1, begun=True)


def record(silent: float, **changes: Any) -> WorkerRecord:
    known = WorkerRecord("w", "h", 1, NOW, 5 * SECOND, 1, holds=("change",))
    return replace(known, heartbeat=NOW - silent * SECOND, read_at=NOW, **changes)


@pytest.mark.parametrize(
    ("silent", "every", "workers"), [(21, 5, 2), (40, 5, 2), (80, 5, 1), (80, 60, 2)]
)
def test_a_worker_that_is_silent_with_mails_may_send_without_knowing_the_hold(
    monkeypatch: pytest.MonkeyPatch, silent: float, every: float, workers: int
) -> None:
    """It hangs, or Cassandra is away from it: then it can read no hold."""
    table = SimpleNamespace(list=lambda _: [HELD])
    monkeypatch.setattr(OwnTable, "existing", classmethod(lambda *_: table))
    hangs = record(silent, every=every * SECOND, in_flight=(MAIL,), holds=())
    records = [record(1), hangs, record(1, ended=True)]
    stores: Any = SimpleNamespace(cassandra=None, settings=None, worker_records=lambda _: records)
    (shown,) = holds.holds(stores, lambda: NOW)
    assert (shown.seen_by, shown.workers) == (1, workers)
