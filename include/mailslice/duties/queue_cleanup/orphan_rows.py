"""Rows without a mark before contentStart, which a sweep finds. Where no worker of the last day
shared the queue: all before browseStart, for no clear of James is there between marks and rows.

Nobody browses them, and whether their mail was delivered nobody can say. The report names them, and
they stay. With `aside` they go to quarantine: `mailslice stuck release` enqueues them anew, `stuck
discard` drops them. mailslice never delivers one by itself.
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
    """Copy each planned row's mail into quarantine, then mark it as deleted; how many, and which of
    them a person must look at, in words.

    What changed since the plan is left alone. What a kill leaves half done is finished by the next
    try of this run: what was marked counts as done. Without one the next sweep takes a mail that
    has no mark, and stuck_mails ends one that has.
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
            except Undecodable as error:  # no message can hold it
                alarms.append(f"{row_key.enqueue_id} cannot be set aside: {error}")
    return count, alarms


def _earlier(run: Run) -> int:
    """How many mails a try of this run that was killed has set aside, and marked; it ends these."""
    quarantine, mine = Quarantine(run.stores, run.queue, run.clock), (run.request.run, ACTION)
    mails = [one for one in quarantine.mails(serial=True) if (one.run, one.action) == mine]
    marked = run.stores.tables.deleted.marked(run.queue, [one.enqueue_id for one in mails])
    for mail in mails:
        if mail.enqueue_id in marked and mail.state is State.CLOSING:
            quarantine.settle(mail)
    return len(marked)


def _is_behind(run: Run, row_key: RowKey, window: timedelta) -> bool:
    """Whether the starts have passed it and nobody has marked it."""
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
    # Its copy may be of a try that was killed long ago, which stuck_mails is withdrawing: then the
    # next sweep takes the mail.
    quarantined_mail = quarantine.renew(quarantine.keep(row.item, holder, decided))
    if quarantined_mail is not None and quarantined_mail.state is State.KEPT:
        # One that a worker kept for some recipients: the others, too.
        quarantined_mail = quarantine.name(quarantined_mail, row.item, decided)
    if quarantined_mail is None:
        return False
    run.stores.tables.deleted.mark_many(run.queue, [row.enqueue_id])
    crash.point("aside:marked")
    _, anew = quarantine.keep_marked(quarantined_mail)
    alarms.extend(f"{one}; look at 'mailslice stuck list {run.queue}'" for one in anew)
    return True
