"""Apply: hold the queue again, prove each planned letter again, act, acknowledge. All others go back.

No crash loses a letter. What is redriven is counted, published, confirmed, and only then acknowledged: a kill in between leaves the letter beside its
copy, and the next run redrives it once more unless the copy was done by then (its mark drops the letter, or the worker's deleted check the copy).
What is exported is read back before it is acknowledged. What is dropped has its deleted mark in two quorum reads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from mailslice.admin.dead_letters import Judged, Letter, judge, letter_of
from mailslice.admin.enqueue import add_row
from mailslice.codec import message as codec
from mailslice.codec.headers import headers_of
from mailslice.duties.dead_letters.decide import (
    DEALT_WITH,
    NO_CONTENT,
    TOO_OFTEN,
    WAITING,
    LetterAction,
    RedriveFacts,
)
from mailslice.duties.dead_letters.export import export_letter
from mailslice.duties.dead_letters.letters import PlannedLetter
from mailslice.duties.dead_letters.lookups import LetterLookups
from mailslice.duties.dead_letters.params import Params
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.mail import Place
from mailslice.model.names import (
    HEADER_DELAY_TOKEN,
    HEADER_DIED,
    HEADER_DOUBT,
    HEADER_FAILURES,
    HEADER_FAULTS,
    HEADER_PARKED,
    HEADER_REASON,
    HEADER_REDRIVE_COUNT,
    HEADER_RENEWED,
    HEADER_THROTTLED,
    RabbitNames,
)
from mailslice.stores.rabbitmq.held import MOST, Held, HeldMessage, hold

MAX_CHECKOUT = timedelta(minutes=10)
"""Then everything is given back and held anew: a broker closes a channel on which a message waits for half an hour."""
_AT_ONCE = 100
"""Letters whose marks are read together."""
_OF_THE_BROKER = frozenset(
    {
        "x-death",
        "x-delivery-count",
        "x-acquired-count",
        "CC",
        "BCC",
        HEADER_REASON,
        HEADER_DIED,
        HEADER_DELAY_TOKEN,
        HEADER_FAILURES,
        HEADER_THROTTLED,
        HEADER_RENEWED,
        HEADER_PARKED,
        HEADER_FAULTS,
        HEADER_DOUBT,
    }
)
_DEATHS = ("x-first-death-", "x-last-death-")
UNMARKED, MARKED = "its deleted mark is gone", "deleted since the plan"
VANISHED = "gone since the plan"
_KINDS = {
    LetterAction.DROP: "dropped",
    LetterAction.EXPORT: "exported",
    LetterAction.REDRIVE: "redriven",
}


class LetterWork:
    """One apply: goes through the queue until every planned letter was come to."""

    def __init__(self, run: Run, letters: Sequence[PlannedLetter], progress: Progress) -> None:
        self.run = run
        self.progress = progress
        self.params = run.params(Params)
        self.names = RabbitNames(run.queue)
        # A queue that keeps its order has the planned letters where they were, or nearer to its head.
        keeps_order = run.stores.management.keeps_order(self.names.dead_letter_queue)
        self.most = len(letters) if keeps_order else MOST
        self.lookups = LetterLookups(run.stores, run.queue)
        self.redriving, self.taking = self._throttles()
        self.pending: dict[str, list[PlannedLetter]] = {}
        for letter in letters:
            if letter.is_acted_on:
                self.pending.setdefault(letter.key, []).append(letter)
        self.exports: list[str] = list(progress.earlier.get("exports", ()))
        run.report(exports=self.exports)  # files below the artifacts location; the list grows

    def perform_all(self) -> None:
        """Deal with the planned letters, until the time is over."""
        while not self._perform_once():
            pass
        crash.point("apply:after-all")
        if self.run.out_of_time():
            return
        for letter in (letter for letters in self.pending.values() for letter in letters):
            if self.progress.earlier:  # the try that was killed dealt with it
                self._done(letter)
            else:
                self.progress.skip(VANISHED)

    def _done(self, letter: PlannedLetter) -> None:
        self.progress.done(_KINDS[LetterAction(letter.action)])

    def _throttles(self) -> tuple[Throttle, Throttle]:
        """For publishes, and for messages that are only taken off."""
        shared = self.run.throttle("rabbitmq")
        own = [rate for rate in (shared.per_second, self.params.rate) if rate]
        return replace(shared, per_second=min(own) if own else None), shared

    def _perform_once(self) -> bool:
        """Go through the queue; whether that was the last time."""
        began = time.monotonic()
        with hold(self.run.settings.rabbitmq, self.names.dead_letter_queue, self.most) as checkout:
            if checkout is None:
                return True
            self.redriving.sleep = self.taking.sleep = checkout.sleep
            matches: list[tuple[HeldMessage, PlannedLetter, Letter]] = []
            for position, message in enumerate(checkout.messages()):
                letter = letter_of(message, position, self.names.work_queue)
                if letter.key in self.pending:
                    matches.append((message, self._taken(letter.key), letter))
                if len(matches) >= _AT_ONCE or not self.pending:
                    self._act(checkout, matches)
                    matches = []
                if not self.pending or self.run.out_of_time():
                    break
                if time.monotonic() - began > MAX_CHECKOUT.total_seconds():
                    self._act(checkout, matches)
                    return False
            self._act(checkout, matches)
        return True

    def _taken(self, key: str) -> PlannedLetter:
        """One planned letter of this key, which is pending no more."""
        waiting = self.pending[key]
        planned = waiting.pop()
        if not waiting:
            del self.pending[key]
        return planned

    def _act(
        self, checkout: Held, matches: Sequence[tuple[HeldMessage, PlannedLetter, Letter]]
    ) -> None:
        """Act on some letters, whose marks are read together. Those that the time limit leaves are pending again."""
        drops = [
            letter.enqueue_id
            for _, planned, letter in matches
            if planned.action == LetterAction.DROP and letter.enqueue_id is not None
        ]
        marked = self.run.stores.tables.deleted.marked(self.run.queue, drops) if drops else set()
        for message, planned, letter in matches:
            if self.run.out_of_time():
                self.pending.setdefault(letter.key, []).append(planned)
            else:
                self._act_on(checkout, message, planned, letter, marked=letter.enqueue_id in marked)

    def _act_on(
        self,
        checkout: Held,
        message: HeldMessage,
        planned: PlannedLetter,
        letter: Letter,
        *,
        marked: bool,
    ) -> None:
        (self.redriving if planned.action == LetterAction.REDRIVE else self.taking).take()
        self.run.require_lock()
        match planned.action:
            case LetterAction.DROP:
                why = None if marked else UNMARKED
            case LetterAction.EXPORT:
                self._export(message, letter)
                why = None
            case _:
                why = self._redrive(checkout, message, letter)
        if why is None:
            checkout.ack(message)
            crash.point("apply:after-ack")
            self._done(planned)
        else:
            self.progress.skip(why)

    def _export(self, message: HeldMessage, letter: Letter) -> None:
        self.exports.append(export_letter(self.run, message, letter.key))
        crash.point("apply:after-export")

    def _redrive(self, checkout: Held, message: HeldMessage, letter: Letter) -> str | None:
        (classified,) = judge(self.run.stores, self.run.queue, [letter])
        facts = self.lookups.redrive_facts([classified], self.run.clock())
        why = self._skip_reason(classified, facts)
        if why is not None or letter.enqueue_id is None:
            return why or DEALT_WITH
        round_ = classified.redrives + 1
        self.run.stores.own.dead_letter_notes.count_redrive(
            self.run.queue, letter.enqueue_id, round_, self.run.clock()
        )
        crash.point("apply:after-count")
        place = facts.rows.get(letter.enqueue_id)
        if place is None:
            place = self._entered(message)
        elif letter.place is None:
            place = None  # a letter of James goes back as James left it
        if self.run.stores.tables.deleted.is_marked(self.run.queue, letter.enqueue_id):
            return MARKED
        checkout.publish(
            self.names.exchange,
            message.body,
            redrive_headers(message.headers, round_, place),
            message.timestamp,
        )
        crash.point("apply:after-publish")
        return None

    def _entered(self, message: HeldMessage) -> Place:
        """A mail that is redriven by force gets a row of today: without one a worker takes it for cleaned, and its mark could go while a copy waits."""
        item = codec.decode(message.body)
        place = add_row(
            self.run.stores,
            self.run.queue,
            item,
            self.lookups.view,
            self.run.clock(),
        )
        crash.point("apply:after-row")
        return place

    def _skip_reason(self, classified: Judged, facts: RedriveFacts) -> str | None:
        """Why a letter that was to be redriven is kept, by what is true now; None: it goes."""
        if classified.marked:
            return MARKED
        if classified.redrives >= self.params.most_redrives:
            return TOO_OFTEN
        if facts.delayed:
            return WAITING
        if not facts.rows and not self.params.force_cleaned:
            return DEALT_WITH
        return None if facts.content else NO_CONTENT


def redrive_headers(
    headers: Mapping[str, Any], redrives: int, place: Place | None = None
) -> dict[str, Any]:
    """The letter's headers for its way back: without those of the broker or a dead-lettering, with the round that begins, and where its row is (`place`)."""
    copied = {
        name: value
        for name, value in headers.items()
        if name not in _OF_THE_BROKER and not str(name).startswith(_DEATHS)
    }
    return {**copied, **headers_of(place), HEADER_REDRIVE_COUNT: redrives}
