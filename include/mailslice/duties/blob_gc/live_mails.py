"""How many mails are live in all queues, by the counts of queue_size and queue_cleanup.

On a busy queue, cleanups delete within a week every row that the last run counted. A comparison
with the last run cannot show lost rows then. Rows of live mails must exist after any cleanup.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from mailslice.maintenance.report import counts_whole_queue
from mailslice.stores.own.runs import RunRow

MAX_AGE = timedelta(days=1)
"""An older count is not used: its mails may be delivered and their rows deleted."""
REPORTS = 10
"""The newest reports of a duty and queue to look at: a failed run has no count."""


def live_mails(newest: Iterable[Iterable[RunRow]], now: datetime) -> int:
    """The sum of each queue's newest count that is not older than MAX_AGE.

    The next count of a drained queue is 0. A cleanup deletes only rows that it counted as dead.
    """
    young = (row for row in chain.from_iterable(newest) if now - row.started <= MAX_AGE)
    counts = ((row.started, live, row.queue) for row in young if (live := _live(row)) is not None)
    return sum({queue: live for _, live, queue in sorted(counts)}.values())


def _live(row: RunRow) -> int | None:
    """The live mails that the run counted in the whole queue; None if it did not count."""
    report: Mapping[str, Any] = json.loads(row.report)
    if row.duty not in {"queue_size", "queue_cleanup"} or not counts_whole_queue(report):
        return None
    if row.duty == "queue_size":
        return report.get("live")
    return (report.get("after") or report.get("before") or {}).get("live")
