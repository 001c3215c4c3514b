"""Does what was asked with the mails of a selection, and keeps who asked and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mailslice.actions.preview import Selection
from mailslice.actions.request import MailAction
from mailslice.admin import holds, queues
from mailslice.admin.deletions import Deletion, Undeleted, deleted_mails, undelete
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.moving import MoveOutcome, Moves
from mailslice.admin.quarantine import Quarantine
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.decision_files import write_decision
from mailslice.model.clock import Clock
from mailslice.model.durations import parse_duration
from mailslice.model.errors import MailsliceError, TryAgain
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail
from mailslice.stores.cassandra.own.decisions import BY_A_PERSON
from mailslice.view.configuration import ConfigurationGuard

_MOST_COUNTED = 100_000
_MOST_IDS = 100
"""Of the mails, in the record of a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Who has it done, why, and by which run. `run` is the same for every try."""

    who: str
    run: str
    reason: str | None = None
    accept_duplicates: bool = False


@dataclass(slots=True)
class ActionOutcome:
    """`counts`: how many mails went which way. `failed`: a sentence, where not all is done."""

    counts: dict[str, int] = field(default_factory=dict)
    ids: Any = ()
    failed: str | None = None
    undo: Mapping[str, Any] = field(default_factory=dict)
    """By which run the mails come back, and until when; empty where they cannot."""
    information: Mapping[str, Any] | None = None
    """What James' routes say of it besides."""


def perform(stores: Stores, selection: Selection, deed: Deed, clock: Clock) -> dict[str, Any]:
    """Act on the mails of the selection that are still there; the counts, and `failed` or None.

    Done again, also after a kill, it ends the same; what an earlier try did counts as `gone`.
    Raises UnknownQueue, ConfigurationDiffers, Refused, StoreUnavailable. A decision is written in
    any case: what was done until then was done.
    """
    request = selection.request
    queues.require(stores, request.queue)
    if request.to is not None:
        queues.require(stores, request.to)
    ConfigurationGuard(stores.tables, stores.settings).agreed()
    outcome = ActionOutcome()
    try:
        _ACTIONS[request.action](stores, selection, deed, clock, outcome)
    finally:
        facts: dict[str, object] = {
            **outcome.counts,
            **outcome.undo,
            "filter": request.texts.parsed().as_json(),
            "digest": selection.digest,
            "dagRun": deed.run,
            "ids": outcome.ids,
        }
        facts |= {name: of for name in ("to", "run", "lasts") if (of := getattr(request, name))}
        write_decision(
            stores.settings,
            clock(),
            who=deed.who,
            action=f"queue {request.action}",
            queue=request.queue,
            reason=deed.reason,
            facts=facts,
        )
    selected = None if selection.ids is None else len(selection.ids)
    about = {"queue": request.queue, "action": request.action.value, "to": request.to}
    return {
        **about,
        "selected": selected,
        **outcome.counts,
        **outcome.undo,
        "failed": outcome.failed,
    } | ({"information": outcome.information} if outcome.information else {})


def _delete(
    stores: Stores, selection: Selection, deed: Deed, clock: Clock, outcome: ActionOutcome
) -> None:
    queue = MailQueue(stores, selection.request.queue, clock)
    initial = _size(queue, selection)
    deletion = Deletion(deed.who, deed.reason or "")
    try:
        queue.delete(selection.mail_filter(clock()), deletion=deletion)
    finally:
        outcome.counts = {"deleted": deletion.mails} | _gone(selection, deletion.mails)
        outcome.ids = [str(one) for one in (selection.ids or ())[:_MOST_IDS]]
        if deletion.until is not None:
            outcome.undo = {"undo": deletion.run, "restorableUntil": iso(deletion.until)}
    if initial is not None:
        outcome.information = {"initialCount": initial, "remainingCount": _size(queue, selection)}


def _undelete(
    stores: Stores, selection: Selection, deed: Deed, clock: Clock, outcome: ActionOutcome
) -> None:
    request, came = selection.request, Undeleted()
    mails = deleted_mails(stores, request.queue, clock(), run=request.run)
    again = deed.accept_duplicates
    try:
        undelete(stores, request.queue, clock, mails, came, accept_duplicates=again)
    finally:
        facts = dict(came.as_json())
        outcome.ids = {str(old): str(new) for old, new in came.ids.items()}
        outcome.counts = {name: int(str(facts[name])) for name in facts if name != "ids"}
    outcome.failed = came.problem("accept_duplicates")


def _hold(
    stores: Stores, selection: Selection, deed: Deed, clock: Clock, outcome: ActionOutcome
) -> None:
    """A later try does not make it last longer."""
    request, lasts = selection.request, None
    if request.lasts:
        lasts = parse_duration(request.lasts, "lasts") - (clock() - selection.at)
        lasts = max(lasts, timedelta(seconds=1))
    about = {"who": deed.who, "reason": deed.reason or ""}
    domains = _domains(selection)
    made = holds.hold(stores, request.queue, clock, domains=domains, lasts=lasts, **about)
    outcome.counts = {"held": len(made)}


def _release(
    stores: Stores, selection: Selection, _deed: Deed, clock: Clock, outcome: ActionOutcome
) -> None:
    queue = selection.request.queue
    ended = holds.release(stores, queue, clock, domains=_domains(selection))
    outcome.counts = {"released": len(ended)}


def _domains(selection: Selection) -> list[str]:
    domain = selection.request.texts.domain
    return [domain] if domain else []


def _size(queue: MailQueue, selection: Selection) -> int | None:
    """For scripts, which have no preview: None where it would take too long."""
    glance = queue.live_summary(_MOST_COUNTED) if selection.ids is None else None
    return None if glance is None else glance.size


def _retry(
    stores: Stores, selection: Selection, _deed: Deed, clock: Clock, outcome: ActionOutcome
) -> None:
    from mailslice.worker import open_worker
    from mailslice.worker.retrying import Retried, deliver_due, retry_now

    async def work() -> tuple[Retried, int]:
        async with open_worker(stores.settings, selection.request.queue) as worker:
            retried = await retry_now(worker, selection.mail_filter(clock()))
            return retried, await deliver_due(worker, retried.retried)

    retried, pending = asyncio.run(work())
    counts = retried.counts
    outcome.counts = counts | {"pending": pending} | _gone(selection, sum(counts.values()))
    outcome.ids = [str(one) for one in retried.retried[:_MOST_IDS]]


def _move(
    stores: Stores, selection: Selection, deed: Deed, clock: Clock, outcome: ActionOutcome
) -> None:
    """A move; also a delay, which is one into the mails' own queue."""
    request, moved, due = selection.request, MoveOutcome(), None
    if request.lasts:
        due = selection.at + parse_duration(request.lasts, "lasts")
        outcome.information = {"due": iso(due)}
    rows = MailQueue(stores, request.queue, clock).matching(selection.mail_filter(clock()))
    try:
        Moves(stores, request.queue, clock).move(
            rows,
            request.to or request.queue,
            why=deed.reason or "by hand",
            who=deed.who,
            accept_duplicates=deed.accept_duplicates,
            outcome=moved,
            due=due,
        )
    finally:
        outcome.counts = moved.counts
        outcome.ids = moved.shown_ids(_MOST_IDS)
    outcome.failed = moved.problem("accept_duplicates")


def decide(
    stores: Stores,
    queue: QueueName,
    quarantine: Quarantine,
    mail: QuarantinedMail,
    clock: Clock,
    *,
    discards: bool,
    why: str,
    who: str,
) -> EnqueueId | bool:
    """Release or discard the mail, and keep that. Its new id; of a discard, whether it was there.

    Raises as `Quarantine.release` and `Quarantine.discard`.
    """
    released_as = None if discards else quarantine.release(mail)
    if discards and not quarantine.discard(mail):
        return False
    row = DecisionRow(
        mail.enqueue_id,
        mail.name,
        mail.stage,
        mail.worker,
        mail.age,
        verdict=BY_A_PERSON,
        action="released" if released_as else "discarded",
        why=why + (f"; it is {released_as} now" if released_as else ""),
        decided=clock(),
        who=who,
        attempt=mail.attempt,
    )
    stores.own.decisions.save(queue, row, stores.settings.duty.retention)
    return released_as or True


def _stuck(
    stores: Stores, selection: Selection, deed: Deed, clock: Clock, outcome: ActionOutcome
) -> None:
    """One mail after the other, of those that are still in quarantine. One that fails is left."""
    request = selection.request
    discards = request.action is MailAction.DISCARD_STUCK
    quarantine = Quarantine(stores, request.queue, clock)
    ids, done, failures = request.texts.parsed().ids or frozenset(), {}, []
    mails = [mail for mail in quarantine.waiting() if mail.enqueue_id in ids]
    name = "discarded" if discards else "released"
    try:
        for mail in mails:
            about = {"why": deed.reason or "by hand", "who": deed.who}
            try:
                new = decide(
                    stores, request.queue, quarantine, mail, clock, discards=discards, **about
                )
            except TryAgain:
                raise
            except MailsliceError as error:
                failures.append(f"{mail.enqueue_id}: {error}")
            else:
                if new is not False:  # else somebody else was faster
                    done[str(mail.enqueue_id)] = None if discards else str(new)
    finally:
        outcome.ids = done
        outcome.counts = {name: len(done), "gone": len(ids) - len(done) - len(failures)}
    if failures:
        outcome.failed = f"{len(failures)} mails are left, such as {failures[0]}"


def _republish(
    stores: Stores, selection: Selection, deed: Deed, clock: Clock, outcome: ActionOutcome
) -> None:
    """An audit that takes a census, and then the mails that it proves lost: with their gates."""
    from mailslice.maintenance.run_request import RunRequest
    from mailslice.maintenance.runner import run_all

    def run(duty: str, run_id: str, params: Mapping[str, object]) -> dict[str, Any]:
        given = {**params, **age, "reason": deed.reason or "by hand"}
        asked = RunRequest(duty, selection.request.queue, run_id, who=deed.who, params=given)
        return run_all(asked, stores.settings, clock=clock)

    asked_age = selection.request.texts.older_than
    age = {} if asked_age is None else {"older_than": asked_age}
    audit = run("queue_audit", f"{deed.run}-audit", {"census": True})
    params = {"audit": audit["run"], "accept_duplicates": deed.accept_duplicates}
    report = run("republish_lost", deed.run, params)
    count = int(report["nbRequeuedMails"])
    doubtful = 0 if deed.accept_duplicates else int(audit["verdicts"].get("lost or ghost") or 0)
    outcome.counts = {"republished": count, "mayBeDelivered": doubtful}
    outcome.information = {"nbRequeuedMails": count, "run": report["run"]}


def _gone(selection: Selection, seen: int) -> dict[str, int]:
    """Mails of the preview that are not there any more, or were done by an earlier try."""
    return {} if selection.ids is None else {"gone": max(0, len(selection.ids) - seen)}


_ACTIONS: Mapping[MailAction, Callable[[Stores, Selection, Deed, Clock, ActionOutcome], None]] = {
    MailAction.DELETE: _delete,
    MailAction.CLEAR: _delete,
    MailAction.FLUSH: _retry,
    MailAction.RETRY: _retry,
    MailAction.MOVE: _move,
    MailAction.DELAY: _move,
    MailAction.REPUBLISH: _republish,
    MailAction.UNDELETE: _undelete,
    MailAction.HOLD: _hold,
    MailAction.RELEASE: _release,
    MailAction.RELEASE_STUCK: _stuck,
    MailAction.DISCARD_STUCK: _stuck,
}
