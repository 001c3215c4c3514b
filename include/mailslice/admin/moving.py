"""Mails on their way from one queue to another: a new entry there, once, with blobs of its own.

Each mail is set aside first, as in quarantine, in a table and a folder of its own: row and content;
the decision; the deleted mark in its queue; that it is written; the new entry. What a kill leaves
before the mark is withdrawn: the mail is its queue's. What it leaves after it is finished. A mail
that was killed between the decision and the record of its mark, and has a mark, is in doubt: it may
have been delivered since (ADR 87). So is one with neither row nor mark: a cleanup drops both.
James deletes the blobs of a marked mail when it drops its message: the new entry refers to others.
A delay is a move into the mail's own queue, as a delayed entry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import TypeVar

from mailslice.admin.evidence import is_over
from mailslice.admin.leased_lock import LEASE, LeasedLock
from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.codec.row import epoch_ms, instant
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.clock import Clock, elapsed_seconds
from mailslice.model.errors import QueueMissing, Refused
from mailslice.model.mail import EnqueueId, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.model.stages import MailStage, Stage
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import QuarantinedMail
from mailslice.stores.cassandra.own.quarantine import Content, State
from mailslice.stores.rabbitmq.publishing import has_consumers

T = TypeVar("T")
U = TypeVar("U")
FOLDER_OF_MOVES = "moving"
_AT_ONCE = 1000
"""Mails between two waits for the workers' records."""
_BETWEEN_RENEWALS = 100
_THREADS = 8
_PATIENCE = timedelta(minutes=1)
"""For handlers that have a mail when it is marked."""
_TICK = 1.0
_MARKED = (State.TAKEN, State.RELEASING, State.RELEASED)


@dataclass(slots=True)
class MoveOutcome:
    """What became of the mails. `moved` has the new enqueue ids by the old.

    `gone`: completed or deleted meanwhile. `in_handler`: a worker has them, so they were left.
    `lost`: without content; they stay. `pending`: taken out of the queue, and not in the other one
    yet, because a handler still has them: move again to finish. `doubtful`: an earlier move was cut
    off at them, and they may have been delivered since; their content is kept. Of a delay
    `moved` are the delayed ones; `later`: they wait until then, or for longer, anyway.
    """

    moved: dict[EnqueueId, EnqueueId] = field(default_factory=dict)
    gone: int = 0
    in_handler: int = 0
    lost: int = 0
    pending: int = 0
    doubtful: int = 0
    later: int | None = None

    @property
    def counts(self) -> dict[str, int]:
        """For answers and decisions."""
        delay = {} if self.later is None else {"later": self.later}
        return {
            "moved" if self.later is None else "delayed": len(self.moved),
            "gone": self.gone,
            "inHandler": self.in_handler,
            "contentLost": self.lost,
            "pending": self.pending,
            "doubtful": self.doubtful,
            **delay,
        }

    def shown_ids(self, limit: int) -> dict[str, str]:
        """New enqueue ids by the old, of the first mails."""
        return {str(old): str(new) for old, new in islice(self.moved.items(), limit)}

    def problem(self, option: str) -> str | None:
        """Why mails are left, and the option that moves those in doubt; None: none is."""
        if not (self.pending or self.doubtful):
            return None
        return (
            f"{self.pending} mails are in a handler yet (move again to finish), {self.doubtful} "
            f"of a move that was cut off may have been delivered since ({option} moves them); "
            "their content is kept"
        )


@dataclass(frozen=True, slots=True)
class _Hands:
    """What the workers of a queue say: ids that they have now, and that they completed."""

    in_flight: frozenset[EnqueueId]
    done: frozenset[EnqueueId]


class Moves:
    """Moves out of one queue."""

    def __init__(
        self,
        stores: Stores,
        queue: QueueName,
        clock: Clock,
        *,
        sleep: Callable[[float], None] = time.sleep,
        lease: timedelta = LEASE,
        patience: timedelta = _PATIENCE,
    ) -> None:
        self._stores = stores
        self._queue = queue
        self._clock = clock
        self._sleep = sleep
        self._patience = patience
        self._right = LeasedLock(
            stores, f"move/{queue}", f"moves mails of {queue}", sleep=sleep, lease=lease
        )
        self._quarantine = Quarantine(
            stores, queue, clock, table=stores.own.moving_mails, folder=FOLDER_OF_MOVES, sleep=sleep
        )

    def move(
        self,
        rows: Iterable[ViewRow],
        into: QueueName,
        *,
        why: str,
        who: str,
        accept_duplicates: bool = False,
        outcome: MoveOutcome | None = None,
        due: datetime | None = None,
    ) -> MoveOutcome:
        """Move these mails, and first finish what earlier moves of this queue left. Mails in doubt
        are moved with `accept_duplicates` alone. `outcome` is filled as it goes. `due`: when they
        are delivered, at the latest in 30 days; the queue may be their own then.

        Raises Refused while another moves mails of the queue, StoreUnavailable: move again.
        """
        outcome = outcome or MoveOutcome()
        if due is not None:
            require_delays(self._stores, into)
            due, outcome.later = instant(epoch_ms(due)), outcome.later or 0  # as it is stored
        decided = Decided("delay" if due else "move", why, who, moved_to=into, due=due)
        with self._right.held(), ThreadPoolExecutor(_THREADS) as threads:
            self._finish_earlier(outcome, threads, accept_duplicates=accept_duplicates)
            for batch in batches(rows, _AT_ONCE):
                taken: list[QuarantinedMail] = []
                sooner = batch if due is None else self._sooner(batch, due, outcome)
                for part in batches(sooner, _BETWEEN_RENEWALS):
                    self._right.renew()
                    taken += self._take_all(part, decided, outcome, threads)
                self._bring(taken, outcome, threads)
        return outcome

    def _sooner(
        self, rows: Sequence[ViewRow], due: datetime, outcome: MoveOutcome
    ) -> list[ViewRow]:
        """Those that are delivered before `due`. The rows may be new entries of this very delay."""
        new = set(outcome.moved.values())
        others = [row for row in rows if row.enqueue_id not in new]
        waiting = self._stores.own.delayed_mails.waiting(
            self._queue, [row.enqueue_id for row in others]
        )
        now = self._clock()  # a run that is repeated too late delays nothing
        sooner = [row for row in others if max(now, waiting.get(row.enqueue_id, now)) < due]
        outcome.later = (outcome.later or 0) + len(others) - len(sooner)
        return sooner

    def _finish_earlier(
        self, outcome: MoveOutcome, threads: ThreadPoolExecutor, *, accept_duplicates: bool
    ) -> None:
        left = list(self._quarantine.mails(serial=True))
        # No mark alone says nothing: a cleanup drops row and mark, or one replica has it alone.
        undecided = [mail.enqueue_id for mail in left if mail.state is State.KEPT]
        over = partial(is_over, self._stores.tables, self._queue, every_replica=True)
        marked = set(filter(over, undecided))
        done = self._hands().done if undecided else frozenset()
        marks: list[QuarantinedMail | None] = []
        for mail in left:
            if mail.state in _MARKED:
                marks.append(mail)
            elif mail.enqueue_id not in marked or mail.enqueue_id in done:
                self._quarantine.withdraw(mail)  # it is its queue's, or was delivered there
            elif accept_duplicates:
                marks.append(self._quarantine.advance(mail, State.TAKEN))
            else:
                outcome.doubtful += 1
        for batch in batches((mail for mail in marks if mail is not None), _AT_ONCE):
            self._bring(batch, outcome, threads)
        self._quarantine.sweep()

    def _take_all(
        self,
        rows: Sequence[ViewRow],
        decided: Decided,
        outcome: MoveOutcome,
        threads: ThreadPoolExecutor,
    ) -> list[QuarantinedMail]:
        """Those of the mails that are out of their queue now."""
        free = self._free(rows, outcome)
        kept = _each(threads, lambda row: self._keep(row, decided), free)
        self._right.require()
        self._right.renew()
        taken = [mail for mail in _each(threads, self._take, kept) if mail is not None]
        lost = sum(mail.content is not Content.KEPT for mail in kept)
        outcome.lost += lost
        outcome.gone += len(kept) - lost - len(taken)
        return taken

    def _take(self, mail: QuarantinedMail) -> QuarantinedMail | None:
        """Out of its queue; None: it has no content, or is done or deleted."""
        decided = None
        if mail.content is Content.KEPT and mail.state is State.CLOSING:
            decided = self._quarantine.advance(mail, State.KEPT)
            crash.point("move:decided")
        if decided is None or self._stores.tables.deleted.is_marked(self._queue, mail.enqueue_id):
            self._quarantine.withdraw(decided or mail)
            return None
        self._stores.tables.deleted.mark_many(self._queue, [mail.enqueue_id])
        crash.point("move:marked")
        taken = self._quarantine.advance(decided, State.TAKEN)
        crash.point("move:taken")
        return taken

    def _free(self, rows: Sequence[ViewRow], outcome: MoveOutcome) -> list[ViewRow]:
        """The rows of mails that no worker has, with the recipients that no attempt has begun."""
        hands = self._hands()
        stages = self._stages(row.enqueue_id for row in rows)
        free = []
        for row in rows:
            record = stages.get(row.enqueue_id)
            if row.enqueue_id in hands.in_flight or (record and record.those(Stage.SENDING)):
                outcome.in_handler += 1
            elif record and record.closed:
                outcome.gone += 1
            elif record and record.remaining:
                mail = replace(row.item.mail, recipients=record.remaining)
                free.append(replace(row, item=replace(row.item, mail=mail)))
            else:
                free.append(row)
        return free

    def _keep(self, row: ViewRow, decided: Decided) -> QuarantinedMail:
        age = max(timedelta(0), self._clock() - row.enqueued_time)
        holder = Holder("", "waiting", row.enqueued_time, age)
        return self._quarantine.keep(row.item, holder, decided)

    def _bring(
        self, mails: Sequence[QuarantinedMail], outcome: MoveOutcome, threads: ThreadPoolExecutor
    ) -> None:
        """Marked mails into their queue, once it is known that no worker completed them."""
        new = [mail for mail in mails if mail.state is State.TAKEN]
        in_flight, done = self._settled({mail.enqueue_id for mail in new})
        outcome.pending += len(in_flight)
        for mail in new:
            if mail.enqueue_id in done:
                self._quarantine.withdraw(mail)
                outcome.gone += 1
        ready = [one for one in mails if one.enqueue_id not in in_flight | done]
        for part in batches(ready, _BETWEEN_RENEWALS):
            self._right.renew()
            for mail, new_id in zip(part, _each(threads, self._release, part), strict=True):
                outcome.moved[mail.enqueue_id] = new_id

    def _release(self, mail: QuarantinedMail) -> EnqueueId:
        return self._quarantine.release_within(mail, self._right.until)

    def _settled(self, ids: set[EnqueueId]) -> tuple[frozenset[EnqueueId], frozenset[EnqueueId]]:
        """Of marked mails those that a handler still has, and those that are delivered.

        A worker that was given a mail before its mark says so in the record after next.
        """
        none: frozenset[EnqueueId] = frozenset()
        work_queue = RabbitNames(self._queue).work_queue
        records = self._stores.own.worker_records.list(self._queue)
        every = self._stores.settings.worker.record_every
        alive = any(record.is_alive for record in records)
        if not ids or not (alive or has_consumers(self._stores.settings.rabbitmq, work_queue)):
            return none, none
        self._sleep(2 * max([every, *(record.every for record in records)]).total_seconds() + _TICK)
        end = elapsed_seconds() + self._patience.total_seconds()
        while (in_flight := (hands := self._hands()).in_flight & ids) and elapsed_seconds() < end:
            self._sleep(_TICK)
            self._right.renew()
        by_stages = {one for one, stage in self._stages(ids).items() if stage.closed}
        return in_flight, (hands.done & ids) | by_stages

    def _hands(self) -> _Hands:
        records = self._stores.own.worker_records.list(self._queue)
        in_flight = (mail.enqueue_id for record in records for mail in record.held)
        done = (enqueue_id for record in records for enqueue_id in record.done)
        return _Hands(frozenset(in_flight), frozenset(done))

    def _stages(self, ids: Iterable[EnqueueId]) -> dict[EnqueueId, MailStage]:
        return dict(self._stores.own.mail_stages.by_ids(self._queue, ids))


def require_delays(stores: Stores, queue: QueueName) -> None:
    """Raises Refused where no worker consumes the queue: nobody would bring delayed mails back."""
    try:
        consumed = has_consumers(stores.settings.rabbitmq, RabbitNames(queue).hop_queue)
    except QueueMissing:
        consumed = False
    if not consumed:
        raise Refused(
            f"no worker of mailslice consumes {queue}, so nobody would bring delayed mails back: "
            f"start one first (mailslice worker run --queue {queue} ...); James' own know no delays"
        )


def _each(threads: ThreadPoolExecutor, work: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """The results in order. All of them end before the first error is raised."""
    futures = [threads.submit(work, item) for item in items]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
