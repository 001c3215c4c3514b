"""Does what was asked with the mails of a selection, and keeps who asked and what came of it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mailslice.actions.preview import Selection
from mailslice.actions.request import ActionRequest, MailAction, row_name
from mailslice.admin import holds, queues
from mailslice.admin.deletions import Deletion, Undeleted, deleted_mails, undelete
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.moving import MoveOutcome, Moves
from mailslice.admin.quarantine import Quarantine
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.decision_files import SHOWN_IDS, write_decision
from mailslice.maintenance.report import BAD
from mailslice.model.clock import Clock
from mailslice.model.durations import parse_duration
from mailslice.model.errors import MailsliceError, Refused, TryAgain
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail
from mailslice.stores.cassandra.own.decisions import BY_A_PERSON
from mailslice.view.configuration import ConfigurationGuard

_MOST_COUNTED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Who asked for the action, why, and in which run. `run` is the same for every try."""

    who: str
    run: str
    reason: str | None = None
    accept_duplicates: bool = False


def perform(stores: Stores, selection: Selection, deed: Deed, clock: Clock) -> dict[str, Any]:
    """Act on the mails of the selection that are still there; the counts, and `failed` or None.

    Done again, also after a kill, it ends the same; of a preview what is done counts as `gone`.
    Raises UnknownQueue, ConfigurationDiffers, Refused, StoreUnavailable. A decision is written in
    any case: what was done until then was done.
    """
    request = selection.request
    queues.require(stores, request.queue)
    if request.to is not None:
        queues.require(stores, request.to)
    ConfigurationGuard(stores.tables, stores.settings).ensure()
    act = _Act(stores, selection, deed, clock)
    try:
        _ACTIONS[request.action](act)
    finally:
        facts = {**act.counts, **act.undo, "filter": request.parsed().as_json()}
        facts |= {"digest": selection.digest, "dagRun": deed.run, "ids": act.ids}
        facts |= {name: of for name in ("to", "run", "lasts") if (of := getattr(request, name))}
        by = {"who": deed.who, "action": f"queue {request.action}", "queue": request.queue}
        write_decision(stores.settings, clock(), **by, reason=deed.reason, facts=facts)
    selected = None if selection.ids is None else len(selection.ids)
    about = {"queue": request.queue, "action": request.action.value, "to": request.to}
    result = {**about, "selected": selected, **act.counts, **act.undo, "failed": act.failed}
    return result | ({"information": act.information} if act.information else {})


@dataclass(slots=True)
class _Act:
    """`counts`: how many mails went which way. `failed`: a sentence, where not all is done."""

    stores: Stores
    selection: Selection
    deed: Deed
    clock: Clock
    counts: dict[str, int] = field(default_factory=dict)
    ids: Any = ()
    failed: str | None = None
    undo: Mapping[str, Any] = field(default_factory=dict)
    """The run to undo, and until when that is possible; empty where it is not."""
    information: Mapping[str, Any] | None = None
    """Further fields of the answer of James' routes."""

    @property
    def request(self) -> ActionRequest:
        return self.selection.request

    @property
    def queue(self) -> MailQueue:
        return MailQueue(self.stores, self.request.queue, self.clock)

    @property
    def why(self) -> str:
        return self.deed.reason or "by hand"

    def delete(self) -> None:
        queue, deletion = self.queue, Deletion(self.deed.who, self.deed.reason or "")
        initial = self._size(queue)
        try:
            queue.delete(self.selection.mail_filter(self.clock()), deletion=deletion)
        finally:
            self.counts = {"deleted": deletion.mails}
            self.ids = [str(one) for one in (self.selection.ids or ())[:SHOWN_IDS]]
            if deletion.until is not None:
                self.undo = {"undo": deletion.run, "restorableUntil": iso(deletion.until)}
        self.counts |= self._gone(deletion.mails)
        if initial is not None:
            self.information = {"initialCount": initial, "remainingCount": self._size(queue)}

    def undelete(self) -> None:
        request, came, again = self.request, Undeleted(), self.deed.accept_duplicates
        mails = deleted_mails(
            self.stores, request.queue, self.clock(), run=request.run, on_missing=came.missing
        )
        try:
            undelete(self.stores, request.queue, self.clock, mails, came, accept_duplicates=again)
        finally:
            facts = dict(came.as_json())
            self.ids = {str(old): str(new) for old, new in came.ids.items()}
            self.counts = {name: int(str(facts[name])) for name in facts if name != "ids"}
        self.failed = came.problem("accept_duplicates")

    def hold(self) -> None:
        """A later try does not make it last longer."""
        lasts = None
        if self.request.lasts:
            passed = self.clock() - self.selection.at
            lasts = max(parse_duration(self.request.lasts, "lasts") - passed, timedelta(seconds=1))
        about = {"who": self.deed.who, "reason": self.deed.reason or ""}
        queue, domains = self.request.queue, self._domains()
        made = holds.hold(self.stores, queue, self.clock, domains=domains, lasts=lasts, **about)
        self.counts = {"held": len(made)}

    def release(self) -> None:
        domains = self._domains()
        ended = holds.release(self.stores, self.request.queue, self.clock, domains=domains)
        self.counts = {"released": len(ended)}

    def retry(self) -> None:
        from mailslice.worker import retrying

        settings, wanted = self.stores.settings, self.selection.mail_filter(self.clock())
        outcome = retrying.Retried()
        work = retrying.retry(settings, self.request.queue, wanted, outcome, dry_run=False)
        try:
            self.counts = {"pending": asyncio.run(work)}
        finally:
            self.counts |= outcome.counts
            self.ids = [str(one) for one in outcome.retried[:SHOWN_IDS]]
        self.counts |= self._gone(sum(outcome.counts.values()))
        self.failed = outcome.problem(self.request.queue)

    def flush(self) -> None:
        """James' flush: every delayed mail is delivered now, also an overdue one, which a retry
        leaves. Of a preview these are retried.
        """
        if self.selection.ids is not None:
            self.retry()
            return
        from mailslice.worker import retrying

        settings, queue, counts = self.stores.settings, self.request.queue, self.counts
        asyncio.run(retrying.flush(settings, queue, lambda n: counts.update(retried=n, flushed=n)))

    def move(self) -> None:
        """A move; also a delay, which is one into the mails' own queue."""
        request, moved, due = self.request, MoveOutcome(), None
        if request.lasts:
            due = self.selection.at + parse_duration(request.lasts, "lasts")
            self.information = {"due": iso(due)}
        try:
            Moves(self.stores, request.queue, self.clock).move(
                self.queue.matching(self.selection.mail_filter(self.clock())),
                request.to or request.queue,
                why=self.why,
                who=self.deed.who,
                accept_duplicates=self.deed.accept_duplicates,
                outcome=moved,
                due=due,
            )
            moved.gone += len({*(self.selection.ids or ())} - moved.examined)
        finally:
            self.counts = moved.counts
            self.ids = moved.shown_ids(SHOWN_IDS)
            self.information = {**(self.information or {}), **moved.names}
        self.failed = moved.problem("accept_duplicates")

    def stuck(self) -> None:
        """One mail after the other, of those still in quarantine. One that fails is left.

        Raises Refused, and does nothing, where an id without attempt names several.
        """
        discards = self.request.action is MailAction.DISCARD_STUCK
        quarantine = Quarantine(self.stores, self.request.queue, self.clock)
        decision = StuckMailDecision(quarantine, discards, self.why, self.deed.who)
        mails, gone = _named(self.request, quarantine.waiting())
        done: dict[str, str | None] = {}
        failures = []
        try:
            for row, mail in mails.items():
                new = decision.apply(mail, self.stores, self.request.queue, self.clock)
                if isinstance(new, MailsliceError):
                    failures.append(f"{row}: {new}")
                elif new is False:  # somebody else was faster
                    gone += 1
                else:
                    done[row] = None if discards else str(new)
        finally:
            self.ids = done
            self.counts = {"discarded" if discards else "released": len(done), "gone": gone}
        if failures:
            self.failed = f"{len(failures)} mails are left, such as {failures[0]}"

    def republish(self) -> None:
        """An audit with a census, and then the mails that it proves lost: with their gates."""
        again, age = self.deed.accept_duplicates, self.request.texts.older_than
        audit = self._run("queue_audit", f"{self.deed.run}-audit", age, census=True)
        of_audit = {"audit": audit["run"], "accept_duplicates": again}
        report = self._run("republish_lost", self.deed.run, age, **of_audit)
        count = int(report["nbRequeuedMails"])
        doubtful = 0 if again else int(audit["verdicts"].get("lost or ghost") or 0)
        self.counts = {"republished": count, "mayBeDelivered": doubtful}
        self.information = {"nbRequeuedMails": count, "run": report["run"]}
        self.failed = next((of["message"] for of in (audit, report) if of["status"] in BAD), None)

    def _run(self, duty: str, run: str, age: str | None, **params: object) -> dict[str, Any]:
        from mailslice.maintenance.run_request import RunRequest
        from mailslice.maintenance.runner import run_all

        params |= {"reason": self.why} | ({} if age is None else {"older_than": age})
        asked = RunRequest(duty, self.request.queue, run, who=self.deed.who, params=params)
        return run_all(asked, self.stores.settings, clock=self.clock)

    def _domains(self) -> list[str]:
        return [domain] if (domain := self.request.texts.domain) else []

    def _size(self, queue: MailQueue) -> int | None:
        """For scripts, which have no preview: None where it would take too long."""
        glance = queue.live_summary(_MOST_COUNTED) if self.selection.ids is None else None
        return None if glance is None else glance.size

    def _gone(self, seen: int) -> dict[str, int]:
        """Mails of the preview that are not there any more, or were done by an earlier try."""
        ids = self.selection.ids
        return {} if ids is None else {"gone": max(0, len(ids) - seen)}


_ACTIONS: Mapping[MailAction, Callable[[_Act], None]] = {
    MailAction.DELETE: _Act.delete,
    MailAction.CLEAR: _Act.delete,
    MailAction.FLUSH: _Act.flush,
    MailAction.RETRY: _Act.retry,
    MailAction.MOVE: _Act.move,
    MailAction.DELAY: _Act.move,
    MailAction.REPUBLISH: _Act.republish,
    MailAction.UNDELETE: _Act.undelete,
    MailAction.HOLD: _Act.hold,
    MailAction.RELEASE: _Act.release,
    MailAction.RELEASE_STUCK: _Act.stuck,
    MailAction.DISCARD_STUCK: _Act.stuck,
}


def _named(
    request: ActionRequest, waiting: Iterable[QuarantinedMail]
) -> tuple[dict[str, QuarantinedMail], int]:
    """The mails that the request names, by row, and how many of those named are gone.

    Raises Refused where an id without attempt names several.
    """
    rows = request.rows
    there: dict[EnqueueId, list[QuarantinedMail]] = {id_: [] for id_, _ in rows}
    for mail in waiting:
        if mail.enqueue_id in there:
            there[mail.enqueue_id].append(mail)
    found: dict[str, QuarantinedMail] = {}
    gone = 0
    for id_, attempt in rows:
        named = {
            row_name(id_, mail.attempt): mail
            for mail in there[id_]
            if attempt is None or mail.attempt == attempt
        }
        if len(named) > 1:
            raise Refused(
                f"{id_} of {request.queue} is in quarantine {len(named)} times; name one: "
                f"{', '.join(sorted(named))}"
            )
        found |= named
        gone += not named
    return found, gone


@dataclass(frozen=True, slots=True)
class StuckMailDecision:
    """What a person decides about mails in quarantine: to release them, or to discard them."""

    quarantine: Quarantine
    discards: bool
    why: str
    who: str

    def apply(
        self, mail: QuarantinedMail, stores: Stores, queue: QueueName, clock: Clock
    ) -> EnqueueId | bool | MailsliceError:
        """Do it, and keep that: the mail's new id; of a discard, whether it was there. An error of
        this mail is given back, that of an unavailable store raised.
        """
        try:
            released_as = None if self.discards else self.quarantine.release(mail)
            if self.discards and not self.quarantine.discard(mail):
                return False
            row = DecisionRow(
                mail.enqueue_id,
                mail.name,
                mail.stage,
                mail.worker,
                mail.age,
                verdict=BY_A_PERSON,
                action="released" if released_as else "discarded",
                why=self.why + (f"; it is {released_as} now" if released_as else ""),
                decided=clock(),
                who=self.who,
                attempt=mail.attempt,
            )
            stores.own.decisions.save(queue, row, stores.settings.duty.retention)
        except TryAgain:
            raise
        except MailsliceError as error:
            return error
        return released_as or True
