"""How many mails are live in all queues, as queue_size and queue_cleanup have counted them.

A cleanup takes all rows of the last run's references from a busy queue within a week. So what the
view has lost cannot be told from its past; the rows of live mails are there whatever was cleaned.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from mailslice.maintenance.report import counts_whole_queue
from mailslice.stores.own.runs import RunRow

MAX_AGE = timedelta(days=1)
"""An older count says nothing: its mails may be delivered and cleaned."""
REPORTS = 10
"""Of a duty and queue, newest first: those that failed count nothing."""


def live_mails(newest: Iterable[Iterable[RunRow]], now: datetime) -> int:
    """The sum of each queue's newest count that is not too old.

    A queue that was drained is shown so by its next count. What a cleanup deletes was dead when it
    counted.
    """
    young = (row for row in chain.from_iterable(newest) if now - row.started <= MAX_AGE)
    counts = ((row.started, live, row.queue) for row in young if (live := _live(row)) is not None)
    return sum({queue: live for _, live, queue in sorted(counts)}.values())


def _live(row: RunRow) -> int | None:
    """What the run counted in the whole queue; None: nothing."""
    report: Mapping[str, Any] = json.loads(row.report)
    if row.duty not in {"queue_size", "queue_cleanup"} or not counts_whole_queue(report):
        return None
    if row.duty == "queue_size":
        return report.get("live")
    return (report.get("after") or report.get("before") or {}).get("live")
