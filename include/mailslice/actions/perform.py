"""Performs an action on the mails of a selection, and records who asked for it and the outcome."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mailslice.actions.preview import Selection
from mailslice.actions.request import ActionRequest, MailAction, row_name
from mailslice.admin import holds, queues
from mailslice.admin.deletions import Deletion, Undeleted, deleted_mails, undelete
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.moves import MoveOutcome, Moves
from mailslice.admin.quarantine import Quarantine
from mailslice.maintenance.artifacts import folder_of, iso
from mailslice.maintenance.decision_files import SHOWN_IDS, write_decision
from mailslice.maintenance.report import BAD
from mailslice.maintenance.result import Summaries
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.clock import Clock
from mailslice.model.durations import parse_duration
from mailslice.model.errors import MailsliceError, Refused, TryAgain
from mailslice.model.mail import EnqueueId
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import QuarantinedMail
from mailslice.view.configuration import ConfigurationGuard

_MAX_COUNTED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Who asked for the action, why, and in which run. Every try has the same `run`."""

    who: str
    run: str
    reason: str | None = None
    accept_duplicates: bool = False


def perform(stores: Stores, selection: Selection, context: Context, clock: Clock) -> dict[str, Any]:
    """Act on the mails of the selection that are still live. Returns JSON: counts, and `failed`.

    Idempotent, also after a kill; mails of a preview that are done already count as `gone`. Raises
    UnknownQueue, ConfigurationDiffers, Refused, StoreUnavailable. Writes a decision even if the
    action raises, for what was done until then.
    """
    request = selection.request
    queues.require(stores, request.queue)
    if request.to is not None:
        queues.require(stores, request.to)
    ConfigurationGuard(stores.tables, stores.settings).ensure()
    act = _Act(stores, selection, context, clock)
    try:
        getattr(act, request.action)()
    finally:
        facts = {**act.counts, **act.undo, "filter": request.parsed().as_json()}
        facts |= {"digest": selection.digest, "dagRun": context.run, "ids": act.ids}
        facts |= {name: of for name in ("to", "run", "lasts") if (of := getattr(request, name))}
        by = {"who": context.who, "action": f"queue {request.action}", "queue": request.queue}
        write_decision(stores.settings, clock(), **by, reason=context.reason, facts=facts)
    selected = None if selection.ids is None else len(selection.ids)
    head = {"queue": request.queue, "action": request.action.value, "to": request.to}
    result = {**head, "selected": selected, **act.counts, **act.undo, "failed": act.failed}
    return result | ({"information": act.information} if act.information else {})


@dataclass(slots=True)
class _Act:
    """An action, by the method of its name, and its outcome. `counts` of mails; `failed`: a
    sentence if mails are left.
    """

    stores: Stores
    selection: Selection
    context: Context
    clock: Clock
    counts: dict[str, int] = field(default_factory=dict)
    ids: Any = ()
    failed: str | None = None
    undo: Mapping[str, Any] = field(default_factory=dict)
    """The run to undo, and until when that is possible; empty if it is not."""
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
        return self.context.reason or "by hand"

    def delete(self) -> None:
        queue, deletion = self.queue, Deletion(self.context.who, self.context.reason or "")
        initial = self._size(queue)
        try:
            queue.delete(self.selection.mail_filter(self.clock()), deletion=deletion)
        finally:
            self.counts = {"deleted": deletion.mails}
            self.ids = [str(id_) for id_ in (self.selection.ids or ())[:SHOWN_IDS]]
            if deletion.until is not None:
                self.undo = {"undo": deletion.run, "restorableUntil": iso(deletion.until)}
        self.counts |= self._count_gone(deletion.mails)
        if initial is not None:
            self.information = {"initialCount": initial, "remainingCount": self._size(queue)}

    clear = delete

    def undelete(self) -> None:
        request, back, resend = self.request, Undeleted(), self.context.accept_duplicates
        mails = deleted_mails(
            self.stores, request.queue, self.clock(), run=request.run, on_missing=back.count_lost
        )
        try:
            undelete(self.stores, request.queue, self.clock, mails, back, accept_duplicates=resend)
        finally:
            facts = dict(back.as_json())
            self.ids = {str(old): str(new) for old, new in back.ids.items()}
            self.counts = {name: int(str(facts[name])) for name in facts if name != "ids"}
        self.failed = back.problem("accept_duplicates")

    def hold(self) -> None:
        """Sets the hold. A later try does not extend it."""
        lasts = None
        if self.request.lasts:
            passed = self.clock() - self.selection.at
            lasts = max(parse_duration(self.request.lasts, "lasts") - passed, timedelta(seconds=1))
        by = {"who": self.context.who, "reason": self.context.reason or ""}
        queue, domains = self.request.queue, self._domains()
        new = holds.hold(self.stores, queue, self.clock, domains=domains, lasts=lasts, **by)
        self.counts = {"held": len(new)}

    def release(self) -> None:
        ended = holds.release(self.stores, self.request.queue, self.clock, domains=self._domains())
        self.counts = {"released": len(ended)}

    def retry(self) -> None:
        from mailslice.worker import retries

        settings, mail_filter = self.stores.settings, self.selection.mail_filter(self.clock())
        outcome = retries.Retried()
        work = retries.retry(settings, self.request.queue, mail_filter, outcome, dry_run=False)
        try:
            self.counts = {"pending": asyncio.run(work)}
        finally:
            self.counts |= outcome.counts
            self.ids = [str(id_) for id_ in outcome.retried[:SHOWN_IDS]]
        self.counts |= self._count_gone(sum(outcome.counts.values()))
        self.failed = outcome.problem(self.request.queue)

    def flush(self) -> None:
        """James' flush: delivers every delayed mail now, also an overdue one, which a retry leaves.
        With a preview it retries the previewed mails.
        """
        if self.selection.ids is not None:
            self.retry()
            return
        from mailslice.worker import retries

        settings, queue, counts = self.stores.settings, self.request.queue, self.counts
        asyncio.run(retries.flush(settings, queue, lambda n: counts.update(retried=n, flushed=n)))

    def move(self) -> None:
        """Moves the mails. A delay is a move into their own queue."""
        request, moved, due = self.request, MoveOutcome(), None
        if request.lasts:
            due = self.selection.at + parse_duration(request.lasts, "lasts")
            self.information = {"due": iso(due)}
        try:
            Moves(self.stores, request.queue, self.clock).move(
                self.queue.matching(self.selection.mail_filter(self.clock())),
                request.to or request.queue,
                why=self.why,
                who=self.context.who,
                accept_duplicates=self.context.accept_duplicates,
                outcome=moved,
                due=due,
            )
            moved.gone += len({*(self.selection.ids or ())} - moved.examined)
        finally:
            self.counts = moved.counts
            self.ids = moved.shown_ids(SHOWN_IDS)
            self.information = {**(self.information or {}), **moved.names}
        self.failed = moved.problem("accept_duplicates")

    delay = move

    def release_stuck(self) -> None:
        """Releases or discards the mails that are still in quarantine. Goes on after a failed one.

        Raises Refused, and does nothing, if an id without attempt names several rows.
        """
        discards = self.request.action is MailAction.DISCARD_STUCK
        quarantine = Quarantine(self.stores, self.request.queue, self.clock)
        decision = StuckMailDecision(quarantine, discards, self.why, self.context.who)
        mails, gone = _find_rows(self.request, quarantine.waiting())
        done: dict[str, str | None] = {}
        failures = []
        try:
            for row, mail in mails.items():
                new = decision.apply(mail)
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

    discard_stuck = release_stuck

    def republish(self) -> None:
        """Runs queue_audit with a census, then republish_lost on its result, with their gates."""
        duplicates, age = self.context.accept_duplicates, self.request.texts.older_than
        audit = self._run("queue_audit", f"{self.context.run}-audit", age, census=True)
        of_audit = {"audit": audit["run"], "accept_duplicates": duplicates}
        report = self._run("republish_lost", self.context.run, age, **of_audit)
        count = report["earlier"] + int(report["nbRequeuedMails"])  # its plan forgot the last try
        doubtful = 0 if duplicates else int(audit["verdicts"].get("lost or ghost") or 0)
        self.counts = {"republished": count, "mayBeDelivered": doubtful}
        self.information = {"nbRequeuedMails": count, "run": report["run"]}
        self.failed = next((of["message"] for of in (audit, report) if of["status"] in BAD), None)

    def _run(self, duty: str, run: str, age: str | None, **params: object) -> dict[str, Any]:
        from mailslice.maintenance.runner import run_all

        params |= {"reason": self.why} | ({} if age is None else {"older_than": age})
        request = RunRequest(duty, self.request.queue, run, who=self.context.who, params=params)
        earlier = Summaries.load(folder_of(request, self.stores.settings), ()).result.applied
        return run_all(request, self.stores.settings, clock=self.clock) | {"earlier": earlier}

    def _domains(self) -> list[str]:
        return [domain] if (domain := self.request.texts.domain) else []

    def _size(self, queue: MailQueue) -> int | None:
        """The queue's size, for scripts, which have no preview. None if counting takes too long."""
        summary = queue.live_summary(_MAX_COUNTED) if self.selection.ids is None else None
        return None if summary is None else summary.size

    def _count_gone(self, handled: int) -> dict[str, int]:
        """The number of previewed mails that are gone, or were handled by an earlier try."""
        ids = self.selection.ids
        return {} if ids is None else {"gone": max(0, len(ids) - handled)}


def _find_rows(
    request: ActionRequest, waiting: Iterable[QuarantinedMail]
) -> tuple[dict[str, QuarantinedMail], int]:
    """Row's name -> mail, for the mails that the request names; and how many of these are gone.

    Raises Refused if an id without attempt names several rows.
    """
    by_id = defaultdict[EnqueueId, list[QuarantinedMail]](list)
    for mail in waiting:
        by_id[mail.enqueue_id].append(mail)
    mails, gone = dict[str, QuarantinedMail](), 0
    for id_, attempt in request.rows:
        named = {row_name(id_, m.attempt): m for m in by_id[id_] if attempt in {None, m.attempt}}
        if len(named) > 1:
            raise Refused(
                f"{id_} of {request.queue} is in quarantine {len(named)} times; name one: "
                f"{', '.join(sorted(named))}"
            )
        mails |= named
        gone += not named
    return mails, gone


@dataclass(frozen=True, slots=True)
class StuckMailDecision:
    """A person's decision about mails in quarantine: release them, or (`discards`) discard them."""

    quarantine: Quarantine
    discards: bool
    why: str
    who: str

    def apply(self, mail: QuarantinedMail) -> EnqueueId | bool | MailsliceError:
        """Carry the decision out and record it. Returns the mail's new enqueue id; for a discard,
        whether the row existed; or the error of this mail. Raises TryAgain if a store is away.
        """
        try:
            act = self.quarantine.discard if self.discards else self.quarantine.release
            return act(mail, self.why, self.who)
        except TryAgain:
            raise
        except MailsliceError as error:
            return error
