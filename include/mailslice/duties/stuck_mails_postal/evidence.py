"""What the stores say of a run's rows after apply: the rows of the gate of verify."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.stuck_mails_postal.keeping import PostalCopies
from mailslice.duties.stuck_mails_postal.planned import PlannedRow
from mailslice.maintenance.run import Run
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry
from mailslice.stores.postal.rows import PostalQueue

_WHOLE, _MISSING, _DIFFERS = "whole", "missing", "differs"
_GONE, _AS_IT_WAS, _ANEW = "gone", "as it was", "anew"


def closed_messages(run: Run, rows: Sequence[PlannedRow], entries: Sequence[PostalEntry]) -> Frame:
    """One row a queue row that was acted on. `rows`: as they were planned.

    `queue`: whether Postal's queue has the very row still. `copy`: of a closed one.
    """
    queue, copies = PostalQueue(run.stores.postal.main), PostalCopies(run.folder.artifacts)
    current = queue.by_id([planned.queued_message for planned in rows])
    of_run = {entry.queued_message: entry for entry in entries if entry.run == run.request.run}
    table = []
    for planned in rows:
        number = planned.queued_message
        entry, row = of_run.get(number), current.get(number)
        table.append(
            {
                "queued_message": number,
                "queue": _GONE if row is None else _AS_IT_WAS if planned.is_still(row) else _ANEW,
                "copy": _WHOLE if entry is None else _copy(copies, entry),
                "entry": "none" if entry is None else entry.state.value,
            }
        )
    kept = [state.value for state in EntryState if state is not EntryState.NOTED]
    expect = [
        Expectation.unique("queued_message", "Every row was acted on once."),
        Expectation.one_of("queue", [_GONE, _ANEW], "No row is in the queue as it was."),
        Expectation.one_of("copy", [_WHOLE], "Every message in quarantine has its whole copy."),
        Expectation.one_of("entry", [*kept, "none"], "No entry waits for its copy."),
    ]
    return Frame("messages", table, expect)


def _copy(copies: PostalCopies, entry: PostalEntry) -> str:
    content = copies.load(entry.copy_id)
    if content is None:
        return _MISSING
    return _WHOLE if hashlib.sha256(content).hexdigest() == entry.sha256 else _DIFFERS
