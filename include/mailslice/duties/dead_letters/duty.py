"""The duty: examine the dead letters, report causes, act on those that may leave the queue."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from mailslice.admin.dead_letters import Letter, classify, peek
from mailslice.admin.queues import require
from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.dead_letters.actions import VANISHED, LetterWork, checkout_limit
from mailslice.duties.dead_letters.decide import CONTENT_UNKNOWN, LetterAction, decide
from mailslice.duties.dead_letters.letters import (
    PlannedLetter,
    ages_by_cause,
    folder_of,
    is_exported,
    sample,
)
from mailslice.duties.dead_letters.lookups import LetterLookups
from mailslice.duties.dead_letters.params import Params
from mailslice.engine.row_files import RowFile
from mailslice.maintenance.duty import Duty
from mailslice.maintenance.plan import QueuePlan
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.dead_letters import Cause

ORDER_UNCHANGED, ORDER_CHANGED = "as it was", "what was looked at went to the back"


class LetterPlan(QueuePlan):
    """The letters that one run may act on."""

    letters: RowFile
    """Rows: PlannedLetter, of every letter that was examined."""
    acted_on: int
    unseen: int
    """Letters behind those that were examined."""

    @property
    def planned(self) -> int:
        return self.acted_on


class DeadLetters(Duty[LetterPlan]):
    """Drops letters of deleted mails, exports what is no mail, redrives on request."""

    plan_type = LetterPlan
    kinds = ("redriven", "dropped", "exported")
    bulky = frozenset({"exports"})

    def plan(self, run: Run) -> LetterPlan:
        """Raises UnknownQueue, StoreUnavailable, LockHeld; Refused where reading would harm."""
        params, stores, queue = run.params(Params), run.stores, run.queue
        require(stores, queue)
        with run.locked():  # nobody else may consume meanwhile; everything goes back, in its order
            now = run.clock()
            peeked = peek(stores, queue, params.look_at)
        crash.point("plan:after-look")
        lookups = LetterLookups(stores, queue)
        decisions = decide(
            classify(stores, queue, peeked.letters),
            params,
            now,
            lambda candidates: lookups.redrive_facts(
                candidates, lookups.with_row((candidate.letter for candidate in candidates), now)
            ),
        )
        letters = [PlannedLetter.of(decision) for decision in decisions]
        run.report(
            **_summary(letters, peeked.unseen),
            order=ORDER_UNCHANGED if peeked.keeps_order else ORDER_CHANGED,
            ages=ages_by_cause(decisions, now),
            sample=sample(decisions, now),
            message=_message(letters, peeked.unseen, exists=peeked.exists),
        )
        return LetterPlan(
            run=run.request.run,
            queue=queue,
            made_at=now,
            letters=run.write_rows("letters", letters, PlannedLetter),
            acted_on=sum(letter.is_acted_on for letter in letters),
            unseen=peeked.unseen,
        )

    def check(self, run: Run, plan: LetterPlan) -> Iterable[Frame]:
        letters, params = run.read_rows(plan.letters, PlannedLetter), run.params(Params)
        redriven = [letter for letter in letters if letter.action == LetterAction.REDRIVE]
        limit = params.limit if params.redrive else 0
        sentence = f"At most {limit} letters are redriven (limit; none without redrive)."
        yield Frame.facts("totals", redriven=(len(redriven), 0, limit, sentence))
        yield _actions(letters, plan.acted_on)
        if redriven:
            yield _redriven(redriven, params.most_redrives)

    def apply(self, run: Run, plan: LetterPlan, progress: Progress) -> None:
        """Raises StoreUnavailable; then run it again."""
        run.require_clock()
        LetterWork(run, run.read_rows(plan.letters, PlannedLetter), progress).perform_all()

    def verify(self, run: Run, plan: LetterPlan, result: Result) -> Iterable[Frame]:
        """Reads the queue again, unless nothing was applied: then it is not disturbed."""
        letters: Sequence[Letter] = ()
        planned = run.read_rows(plan.letters, PlannedLetter)
        if result.applied:
            with run.locked():
                letters = peek(run.stores, run.queue, checkout_limit(run, planned)).letters
        acted_on = Counter(letter.key for letter in planned if letter.is_acted_on)
        still_queued = acted_on & Counter(letter.key for letter in letters)
        exports = result.fields.get("exports", ())
        missing = sum(not is_exported(run.folder.artifacts, export) for export in exports)
        removed = "No planned letter is in the queue, except those that were skipped or left."
        complete = "Every exported letter is in its file, byte for byte."
        yield Frame.facts(
            "after",
            planned_still_there=(still_queued.total(), 0, result.not_done, removed),
            exports_missing=(missing, 0, 0, complete),
        )

    def describe(self, steps: Summaries) -> str:
        result, remaining = steps.result, _remaining(steps)
        if not result.planned:
            return ""
        words = [f"{count} {kind}" for kind, count in result.kinds.items() if count]
        words += [f"{remaining} kept"] if remaining else []
        return ", ".join(words + result.rest())

    def nothing(self, steps: Summaries) -> str:
        letters = steps.plan["letters"]
        return super().nothing(steps) + (f"; all {letters} are kept" if letters else "")

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """`kept`: letters that are still in the queue, of those that were examined."""
        folder = steps.folder
        exported = steps.result.kinds["exported"]
        without_plan = {**_summary((), 0), "order": None, "ages": {}, "sample": []}
        return {
            **({} if steps.plan else without_plan),
            "kept": _remaining(steps),
            "exports": folder.artifacts.uri(folder_of(folder.queue)) if exported else None,
        }


DUTY = DeadLetters()


def _remaining(steps: Summaries) -> int:
    letters = int(steps.plan.get("letters", 0))
    return letters - steps.result.applied - steps.result.skipped.get(VANISHED, 0)


def _summary(letters: Sequence[PlannedLetter], unseen: int) -> dict[str, Any]:
    actions = Counter(letter.action for letter in letters)
    return {
        "letters": len(letters),
        "unseen": unseen,
        "causes": Counter(letter.cause for letter in letters),
        "actions": {action.value: actions[action] for action in LetterAction},
        "keptBy": Counter(letter.why for letter in letters if not letter.is_acted_on),
        "contentUnknown": [one.enqueue_id for one in letters if one.why == CONTENT_UNKNOWN][:100],
        "bytes": sum(letter.size for letter in letters if letter.is_acted_on),
    }


def _message(letters: Sequence[PlannedLetter], unseen: int, *, exists: bool) -> str:
    if not exists:
        return "nothing to do: there is no dead letter queue (James 3.5 declares none)"
    if not letters:
        return "nothing to do: there is no dead letter"
    actions = Counter(letter.action for letter in letters)
    words = [f"{len(letters)} dead letters"]
    words += [f"{actions[action]} to {action.value}" for action in LetterAction if actions[action]]
    words += [f"{unseen} behind them were not looked at"] if unseen else []
    return ", ".join(words)


def _actions(letters: Sequence[PlannedLetter], acted_on: int) -> Frame:
    """One row a letter of the plan's file that is not kept."""
    rows = [
        {
            "position": letter.position,
            "action": letter.action,
            "mail_exported": int(
                letter.action == LetterAction.EXPORT and letter.cause != Cause.BAD_JSON
            ),
            "no_mail_moved": int(
                letter.action != LetterAction.EXPORT
                and (letter.cause == Cause.BAD_JSON or not letter.enqueue_id)
            ),
        }
        for letter in letters
        if letter.is_acted_on
    ]
    expect = [
        Expectation.rows(acted_on, "Every letter that the plan counts is there."),
        Expectation.unique("position", "Every letter gets one action."),
        Expectation.one_of(
            "action",
            [LetterAction.DROP.value, LetterAction.EXPORT.value, LetterAction.REDRIVE.value],
            "A letter is dropped, exported or redriven.",
        ),
        Expectation.equal("mail_exported", 0, "Only what is no mail is exported and dropped."),
        Expectation.equal(
            "no_mail_moved", 0, "What is no mail is neither redriven nor dropped as deleted."
        ),
    ]
    return Frame("actions", rows, expect, may_be_empty=not acted_on)


def _redriven(letters: Sequence[PlannedLetter], max_redrives: int) -> Frame:
    rows = [{"enqueue_id": letter.enqueue_id, "redrives": letter.redrives} for letter in letters]
    expect = [
        Expectation.unique("enqueue_id", "Of each mail at most one letter is redriven."),
        Expectation.between(
            "redrives",
            0,
            max_redrives - 1,
            f"No mail is redriven that was redriven {max_redrives} times already (most_redrives).",
        ),
    ]
    return Frame("redriven", rows, expect)
