"""Finishes what a killed run left behind, by what the stores say happened.

Before anything new is begun, and under the duty's lock: nobody else is at it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from mailslice.admin.enqueue import publish
from mailslice.admin.evidence import is_over
from mailslice.admin.quarantine import OVER, Quarantine
from mailslice.codec import message as codec
from mailslice.duties.stuck_mails.bounce import send_bounce
from mailslice.duties.stuck_mails.verdicts import Action
from mailslice.maintenance.run import Run
from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.model.mail import EnqueueId
from mailslice.stores.cassandra.own import QuarantinedMail
from mailslice.stores.cassandra.own.quarantine import State

log = logging.getLogger(__name__)

_GOING = {State.DISCARDING, State.RELEASED}


def finish(run: Run, quarantine: Quarantine, planned: Collection[EnqueueId]) -> dict[str, int]:
    """What was finished, by what became of it; but what is being closed of this run's plan.

    Also remembered: which closed mails their workers completed after all, so that nobody releases
    those without knowing it.
    """
    records = run.stores.own.worker_records.list(run.queue)
    done = {enqueue_id for record in records for enqueue_id in record.done}
    finished: Counter[str] = Counter()
    for mail in quarantine.mails(serial=True):
        # A mail whose recipients in doubt failed goes on with the others: its end says nothing of
        # these.
        if mail.action == Action.CLOSED and mail.state is State.KEPT and mail.enqueue_id in done:
            if mail.finished is None:
                quarantine.finished(mail, run.clock())
                finished["completed by its worker after all"] += 1
        elif mail.state is State.RECOVERING:
            finished[_recover(run, quarantine, mail)] += 1
        # What was on its way out is so for every plan: nothing can be kept beside it.
        elif (mail.state in _GOING or mail.enqueue_id not in planned) and _tidied(quarantine, mail):
            finished[f"was {mail.state}"] += 1
    return dict(finished)


def forget_notes(quarantine: Quarantine) -> None:
    """What earlier versions noted in shadow mode goes: the report says the same."""
    for mail in quarantine.mails(serial=True):
        if mail.state is State.NOTED:
            quarantine.tidy(mail)


def _tidied(quarantine: Quarantine, mail: QuarantinedMail) -> bool:
    """Whether it was finished. While a replica is away nobody knows that a mail has no mark."""
    try:
        return quarantine.tidy(mail, None if mail.action == Action.CLOSED else OVER)
    except StoreUnavailable as error:
        log.warning("%s stays in quarantine as %s: %s", mail.enqueue_id, mail.state, error)
        return False


def sweep(quarantine: Quarantine) -> tuple[dict[str, int], str | None]:
    """Copies without a row that were removed; why they were left, where they may be another's."""
    try:
        orphans = quarantine.sweep()
    except Refused as error:
        return {}, str(error)
    return ({"content without a row": orphans} if orphans else {}), None


def _recover(run: Run, quarantine: Quarantine, mail: QuarantinedMail) -> str:
    """The mail was being taken from its holder.

    Not taken: it is the next plan's. Taken: published again, which the stage marks make safe.
    """
    stores, queue, failed = run.stores, run.queue, mail.action == Action.FAILED
    stage = stores.own.mail_stages.read(queue, mail.enqueue_id)
    if stage is None or stage.attempt <= mail.attempt:
        quarantine.withdraw(mail)
        return "not taken from its holder"
    item = codec.decode(mail.message)
    if failed:
        send_bounce(stores, item, run.clock)
    # A James that took what was published says nothing to the record.
    if stage.owner == mail.run and not is_over(stores.tables, queue, mail.enqueue_id):
        if stage.remaining:
            remaining_item = replace(item, mail=replace(item.mail, recipients=stage.remaining))
            publish(stores, queue, remaining_item, None, run.clock())
        else:
            stores.tables.deleted.mark_many(queue, [mail.enqueue_id])
    if failed:
        quarantine.settle(mail)
        return "failed"
    quarantine.withdraw(mail)
    return "released"
