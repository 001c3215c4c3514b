"""Apply: check the queue out again, check each planned letter again, act, acknowledge.

All other letters are requeued. No crash loses a letter:
- A redrive is counted, published, confirmed, and acknowledged last. A kill in between leaves the
  letter beside its copy. If the copy is done when the next run reads the letter, its mark drops
  the letter. Else the run redrives again, and the worker's deleted check drops the second copy.
- An export is read back before its letter is acknowledged.
- A dropped letter has its deleted mark in two quorum reads.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from mailslice.admin.dead_letters import Letter, classify, letter_of
from mailslice.admin.enqueue import add_rows
from mailslice.codec import message as codec
from mailslice.codec.headers import headers_of
from mailslice.duties.dead_letters.decide import (
    DEALT_WITH,
    TOO_OFTEN,
    LetterAction,
    is_redriven_often,
    reason_not_to_redrive,
)
from mailslice.duties.dead_letters.letters import PlannedLetter, export_letter, folder_of
from mailslice.duties.dead_letters.lookups import LetterLookups
from mailslice.duties.dead_letters.params import Params
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model import crash, names
from mailslice.model.dead_letters import MAX_CHECKED_OUT
from mailslice.model.mail import EnqueueId, Partition
from mailslice.stores.rabbitmq.checkout import CheckedOutMessage, Checkout, check_out

MAX_CHECKOUT = timedelta(minutes=10)
"""Longest checkout. A broker closes a channel with a message that is unacknowledged for 30 min."""
_AT_ONCE = 100
"""Letters whose marks or rows are looked up together."""
_OF_THE_BROKER = frozenset(
    {
        *("x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC"),
        *(names.HEADER_REASON, names.HEADER_DIED, names.HEADER_DELAY_TOKEN, names.HEADER_FAILURES),
        *(names.HEADER_THROTTLED, names.HEADER_PARKED, names.HEADER_FAULTS),
        names.HEADER_DOUBT,
    }
)
_DEATHS = ("x-first-death-", "x-last-death-")
UNMARKED, MARKED = "its deleted mark is gone", "deleted since the plan"
VANISHED = "gone since the plan"
Match = tuple[CheckedOutMessage, PlannedLetter, Letter]
_KINDS = {
    LetterAction.DROP: "dropped",
    LetterAction.EXPORT: "exported",
    LetterAction.REDRIVE: "redriven",
}


class LetterWork:
    """One apply: goes through the queue until every planned letter was reached."""

    def __init__(self, run: Run, letters: Sequence[PlannedLetter], progress: Progress) -> None:
        self.run = run
        self.progress = progress
        self.params = run.params(Params)
        self.names = names.RabbitNames(run.queue)
        self.limit = checkout_limit(run, letters)
        self.lookups = LetterLookups(run.stores, run.queue)
        self.checkout_rate = run.throttle("rabbitmq")
        self.redrive_rate = run.throttle("rabbitmq", self.params.rate)
        self.pending: dict[str, list[PlannedLetter]] = {}
        for letter in letters:
            if letter.is_acted_on:
                self.pending.setdefault(letter.key, []).append(letter)
        self.exports: list[str] = list(progress.earlier.get("exports", ()))
        run.report(exports=self.exports)  # files below the artifacts location; the list grows

    def perform_all(self) -> None:
        while self._perform_once() and not self.run.out_of_time():
            pass
        crash.point("apply:after-all")
        if not self.pending or self.run.out_of_time():
            return
        earlier, files = self.progress.earlier, self.run.folder.artifacts.files
        exports = " ".join(files(folder_of(self.run.queue))) if earlier else ""
        for letter in (letter for letters in self.pending.values() for letter in letters):
            if earlier and self._was_done(letter, exports):
                self._count_done(letter)
            else:
                self.progress.skip(VANISHED)

    def _was_done(self, letter: PlannedLetter, exports: str) -> bool:
        """Whether an earlier try dealt with it. A drop leaves no trace: it counts as done."""
        if letter.action != LetterAction.REDRIVE:
            return letter.action == LetterAction.DROP or f"-{letter.key[:12]}.json" in exports
        enqueue_id = EnqueueId(UUID(letter.enqueue_id))
        notes = self.run.stores.own.dead_letter_notes.by_ids(self.run.queue, [enqueue_id])
        return enqueue_id in notes and notes[enqueue_id].redrives > letter.redrives

    def _count_done(self, letter: PlannedLetter) -> None:
        self.progress.done(_KINDS[LetterAction(letter.action)])

    def _perform_once(self) -> bool:
        """Go through the queue once; whether this ended early, so that another pass is needed."""
        self._deadline = time.monotonic() + MAX_CHECKOUT.total_seconds()
        with check_out(
            self.run.settings.rabbitmq, self.names.dead_letter_queue, self.limit
        ) as checkout:
            if checkout is None:
                return False
            self.redrive_rate.sleep = self.checkout_rate.sleep = checkout.sleep
            matches: list[Match] = []
            for position, message in enumerate(checkout.messages()):
                letter = letter_of(message, position, self.names.work_queue)
                if letter.key in self.pending:
                    matches.append((message, self._take_pending(letter.key), letter))
                if len(matches) >= _AT_ONCE or not self.pending:
                    self._act(checkout, matches)
                    matches = []
                if not self.pending or self._is_over():
                    break
            self._act(checkout, matches)
        return bool(self.pending) and self._is_over()

    def _is_over(self) -> bool:
        return self.run.out_of_time() or time.monotonic() > self._deadline

    def _take_pending(self, key: str) -> PlannedLetter:
        """Take one planned letter of this key out of `pending`."""
        *others, planned = self.pending.pop(key)
        if others:
            self.pending[key] = others
        return planned

    def _act(self, checkout: Checkout, matches: Sequence[Match]) -> None:
        """Act on letters, whose marks and rows are looked up together. While the run has time it
        acts on one at least. The others become pending again.
        """
        ids = [letter.enqueue_id for *_, letter in matches if letter.enqueue_id is not None]
        marked = self.run.stores.tables.deleted.marked(self.run.queue, ids)
        redriven = [letter for _, plan, letter in matches if plan.action == LetterAction.REDRIVE]
        self._rows = self.lookups.with_row(redriven, self.run.clock()) if redriven else {}
        for number, match in enumerate(matches):
            _, planned, letter = match
            if self._is_over() if number else self.run.out_of_time():
                self.pending.setdefault(letter.key, []).append(planned)
            else:
                self._act_on(checkout, match, marked=letter.enqueue_id in marked)

    def _act_on(self, checkout: Checkout, match: Match, *, marked: bool) -> None:
        message, planned, letter = match
        checkout.sleep(0)  # a store may have answered for the last letter after 10 s, or not at all
        (self.redrive_rate if planned.action == LetterAction.REDRIVE else self.checkout_rate).take()
        self.run.require_lock()
        match planned.action:
            case LetterAction.DROP:
                why = None if marked else UNMARKED
            case LetterAction.EXPORT:
                self.exports.append(export_letter(self.run, message, letter.key))
                crash.point("apply:after-export")
                why = None
            case _:
                why = self._redrive(checkout, message, letter)
        if why is None:
            checkout.ack(message)
            crash.point("apply:after-ack")
            self._count_done(planned)
        else:
            self.progress.skip(why)

    def _redrive(
        self, checkout: Checkout, message: CheckedOutMessage, letter: Letter
    ) -> str | None:
        (classified,) = classify(self.run.stores, self.run.queue, [letter])
        checkout.sleep(0)
        where = ((self._rows[id_], id_) for id_ in self._rows if id_ == letter.enqueue_id)
        facts = self.lookups.redrive_facts([classified], self.lookups.rows_in(where))
        if classified.marked:
            return MARKED
        if is_redriven_often(classified, self.params):
            return TOO_OFTEN
        if letter.enqueue_id is None:
            return DEALT_WITH
        if why := reason_not_to_redrive(facts, classified, letter.enqueue_id, self.params):
            return why
        round_ = classified.redrives + 1
        self.run.stores.own.dead_letter_notes.count_redrive(
            self.run.queue, letter.enqueue_id, round_, self.run.clock()
        )
        crash.point("apply:after-count")
        partition = facts.rows.get(letter.enqueue_id)
        if partition is None:
            partition = self._add_row(message)
        elif letter.partition is None:
            partition = None  # a letter of James goes back as James left it
        if self.run.stores.tables.deleted.is_marked(self.run.queue, letter.enqueue_id):
            return MARKED
        checkout.publish(
            self.names.exchange,
            message.body,
            redrive_headers(message.headers, round_, partition),
            self.run.clock(),  # its age starts again, as its attempts do
        )
        crash.point("apply:after-publish")
        return None

    def _add_row(self, message: CheckedOutMessage) -> Partition:
        """Add a row of today for a mail that is redriven by force.

        Without a row a worker considers the mail cleaned up, and its mark could be deleted while a
        copy waits.
        """
        run, items = self.run, [codec.decode(message.body)]
        rows = add_rows(run.stores, run.queue, items, self.lookups.view, run.clock())
        crash.point("apply:after-row")
        return rows[0].partition


def checkout_limit(run: Run, letters: Sequence[PlannedLetter]) -> int:
    """Messages to check out. In a queue that keeps its order letters only move to the head."""
    name = names.RabbitNames(run.queue).dead_letter_queue
    return len(letters) if run.stores.management.keeps_order(name) else MAX_CHECKED_OUT


def redrive_headers(
    headers: Mapping[str, Any], redrives: int, partition: Partition | None = None
) -> dict[str, Any]:
    """The letter's headers for its redelivery.

    Without those of the broker and of the dead-lettering; with the number of this redrive, and
    where the mail's row is (`partition`).
    """
    copied = {
        name: value
        for name, value in headers.items()
        if name not in _OF_THE_BROKER and not str(name).startswith(_DEATHS)
    }
    return {**copied, **headers_of(partition), names.HEADER_REDRIVE_COUNT: redrives}
