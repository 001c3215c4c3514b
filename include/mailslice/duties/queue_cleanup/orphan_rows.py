"""Orphan rows, which a sweep finds: rows without a mark before contentStart.

On a queue that no worker of the last day shared they are all unmarked rows before browseStart: no
clear of James can have dropped their marks. No browse shows an orphan row, and nobody can tell
whether its mail was delivered. The report names them, and they stay. With `aside` their mails go to
quarantine: `mailslice stuck release` enqueues one again, `stuck discard` drops it. mailslice never
delivers one by itself.
"""

from collections.abc import Sequence
from datetime import timedelta

from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.duties.queue_cleanup.plan import RowKey
from mailslice.duties.queue_cleanup.view import rows_of, starts_of
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import Undecodable
from mailslice.model.mail import ViewRow
from mailslice.model.slices import is_live
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.view.sharing import is_alone

ACTION = "stray"
_WHY = (
    "a row without a mark before browseStart: nobody browses it, and nobody can say whether its "
    "mail was delivered"
)


def quarantine_rows(run: Run, rows: Sequence[RowKey], window: timedelta) -> tuple[int, list[str]]:
    """Copy each planned row's mail into quarantine, then mark the mail as deleted.

    Gives their number, and messages about mails that a person must look at. Rows that changed since
    the plan stay. After a kill the next try of this run finishes a mail that is half done. Without
    a next try, a sweep takes an unmarked mail again, and stuck_mails finishes a marked one.
    """
    throttle, count, alarms = run.throttle("s3"), _earlier(run) if rows else 0, list[str]()
    for row_key in rows:
        run.require_lock()
        throttle.take()
        table = rows_of(run.stores, row_key.table)
        row = table.row(run.queue, row_key.partition, row_key.enqueue_id)
        if row is not None and _is_behind(run, row_key, window):
            try:
                count += _quarantine_row(run, row, alarms)
            except Undecodable as error:  # the row cannot be a message
                alarms.append(f"{row_key.enqueue_id} cannot be set aside: {error}")
    return count, alarms


def _earlier(run: Run) -> int:
    """Finish the mails that a killed try of this run quarantined and marked. Gives their number."""
    quarantine, this_run = Quarantine(run.stores, run.queue, run.clock), (run.request.run, ACTION)
    mails = [mail for mail in quarantine.mails(serial=True) if (mail.run, mail.action) == this_run]
    marked = run.stores.tables.deleted.marked(run.queue, [mail.enqueue_id for mail in mails])
    for mail in mails:
        if mail.enqueue_id in marked and mail.state is State.CLOSING:
            quarantine.settle(mail)
    return len(marked)


def _is_behind(run: Run, row_key: RowKey, window: timedelta) -> bool:
    """Whether the row is still an orphan: before the starts, and without a mark."""
    starts = starts_of(run.stores, run.queue)
    shared = run.settings.queue.shared or not is_alone(run.stores, run.queue)
    passed = all(
        start is not None and not is_live(row_key.slice_start, start, window)
        for start in (starts.browse, starts.content if shared else starts.browse)
    )
    return passed and not run.stores.tables.deleted.is_marked(run.queue, row_key.enqueue_id)


def _quarantine_row(run: Run, row: ViewRow, alarms: list[str]) -> bool:
    quarantine = Quarantine(run.stores, run.queue, run.clock)
    since = row.enqueued_time or row.partition.slice_start
    holder = Holder("-", ACTION, since, run.clock() - since)
    decided = Decided(ACTION, _WHY, run.request.who, run.request.run)
    # The copy may be of a try that was killed long ago, and stuck_mails may be withdrawing it now.
    # Then this is None, and the next sweep takes the mail.
    quarantined_mail = quarantine.renew(quarantine.keep(row.item, holder, decided))
    if quarantined_mail is not None and quarantined_mail.state is State.KEPT:
        # A worker quarantined the mail for some recipients only. Name the others, too.
        quarantined_mail = quarantine.extend(quarantined_mail, row.item, decided)
    if quarantined_mail is None:
        return False
    run.stores.tables.deleted.mark_many(run.queue, [row.enqueue_id])
    crash.point("aside:marked")
    _, withdrawn = quarantine.keep_marked(quarantined_mail)
    alarms.extend(withdrawn)
    return True
