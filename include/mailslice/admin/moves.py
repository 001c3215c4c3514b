"""Moves mails from one queue to another: each becomes one new entry there, with its own blobs.

The steps for a mail: copy row and content to a table and a folder for moves; decide (KEPT); write
the deleted mark in its queue; prove that no worker completed it (TAKEN); enqueue it anew. After a
kill before the mark, the next move removes the copy, and the mail stays in its queue. The next move
also finishes a TAKEN mail. A mail that may have a mark and is not TAKEN is in doubt: it may have
been delivered (ADR 87). James deletes the blobs of a marked mail when it drops the message: the new
entry has blobs of its own. A delay is a move into the mail's own queue, as a delayed entry.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from itertools import islice
from typing import TypeVar

from mailslice.admin.evidence import Partitions, is_finished
from mailslice.admin.leased_lock import LEASE, LeasedLock
from mailslice.admin.quarantine import Decided, Holder, MayBeDelivered, Quarantine, without
from mailslice.admin.worker_history import WorkerHistory
from mailslice.codec import message as codec
from mailslice.codec.row import epoch_ms, instant
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.clock import Clock
from mailslice.model.command_line import command_line
from mailslice.model.errors import DeadLetter, QueueMissing, Refused, StoreUnavailable, UnknownQueue
from mailslice.model.mail import EnqueueId, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.model.stages import MailStage, Stage
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import MailStages, QuarantinedMail
from mailslice.stores.cassandra.own.quarantine import Content, State
from mailslice.stores.rabbitmq.blocking_publisher import has_consumers

log = logging.getLogger(__name__)
_MAX_NAMES = 100
T = TypeVar("T")
U = TypeVar("U")
_Mails = list[QuarantinedMail]
FOLDER_OF_MOVES = "moving"
_AT_ONCE = 1000
"""Mails that are marked before the move waits for the workers' records."""
_BETWEEN_RENEWALS = 100
_THREADS = 8
_LOOK_SECONDS = 1.0
_PATIENCE = timedelta(minutes=1)
"""How long to wait for handlers that have a mail when it is marked."""
_PROVED = (State.TAKEN, State.RELEASING, State.RELEASED)
"""States of a mail that is proved not to be completed by a worker."""


@dataclass(slots=True)
class MoveOutcome:
    """Counts of mails. `moved`: old enqueue id -> new enqueue id; of a delay, the delayed mails.

    `gone`: completed or deleted meanwhile. `in_handler`: left in the queue, as a worker has them.
    `lost`: without content; they stay. `pending`: taken out of the queue and not in the other one
    yet, because a handler still has them: move again to finish. `doubtful`: taken out of the queue,
    and nothing shows whether they were delivered since. `quarantined`: mails in doubt whose copy
    is gone, which are in quarantine now. `finished`: as `moved`, for earlier moves to other queues.
    `later`: mails that a delay leaves, as they are due at its time or after it anyway. `examined`:
    the ids of the mails that are counted.
    """

    moved: dict[EnqueueId, EnqueueId] = field(default_factory=dict)
    finished: dict[EnqueueId, EnqueueId] = field(default_factory=dict)
    examined: set[EnqueueId] = field(default_factory=set)
    gone: int = 0
    in_handler: int = 0
    lost: int = 0
    pending: int = 0
    doubtful: int = 0
    quarantined: int = 0
    later: int | None = None
    doubtful_names: list[str] = field(default_factory=list)
    """Names of the first hundred mails in doubt."""
    new_ids: set[EnqueueId] = field(default_factory=set)

    @property
    def counts(self) -> dict[str, int]:
        optional = {"later": self.later, "quarantined": self.quarantined or None}
        return {
            "moved" if self.later is None else "delayed": len(self.moved),
            "gone": self.gone,
            "inHandler": self.in_handler,
            "contentLost": self.lost,
            "pending": self.pending,
            "doubtful": self.doubtful,
            "finished": len(self.finished),
            **{name: count for name, count in optional.items() if count is not None},
        }

    @property
    def names(self) -> dict[str, list[str]]:
        """JSON field with the names of mails in doubt; empty where there are none."""
        return {"doubtfulNames": self.doubtful_names} if self.doubtful_names else {}

    def doubt(self, mail: QuarantinedMail) -> None:
        """Count and name a mail in doubt: a person looks its name up in the next hop's log."""
        self.doubtful += 1
        if len(self.doubtful_names) < _MAX_NAMES:
            self.doubtful_names.append(mail.name)

    def without_holder(
        self,
        rows: Sequence[ViewRow],
        in_flight: Collection[EnqueueId],
        stages: Mapping[EnqueueId, MailStage],
    ) -> list[ViewRow]:
        """The rows of mails that no worker has or completed. Counts the others."""
        free = []
        for row in rows:
            record = stages.get(row.enqueue_id)
            if row.enqueue_id in in_flight or (record and record.recipients_at(Stage.SENDING)):
                self.in_handler += 1
            elif record and record.closed:
                self.gone += 1
            else:
                free.append(row)
        return free

    def shown_ids(self, limit: int) -> dict[str, str]:
        """Old enqueue id -> new enqueue id, of the first `limit` moved mails."""
        return {str(old): str(new) for old, new in islice(self.moved.items(), limit)}

    def problem(self, option: str) -> str | None:
        """Why mails are left, and the `option` for those in doubt; None when no mail is left."""
        if not (self.pending or self.doubtful or self.quarantined):
            return None
        return (
            f"{self.pending} mails are still in a handler (move again to finish), {self.doubtful} "
            "were taken out of their queue and may have been delivered since "
            f"({option} moves them), {self.quarantined} without a copy are in quarantine now"
        )


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
        at_once: int = _AT_ONCE,
    ) -> None:
        self._stores = stores
        self._queue = queue
        self._clock = clock
        self._at_once = at_once
        self._history = WorkerHistory(stores, queue, sleep, patience)
        self._lock = LeasedLock(
            stores, f"move/{queue}", f"moves mails of {queue}", sleep=sleep, lease=lease
        )
        self._quarantine = Quarantine(
            stores, queue, clock, table=stores.own.moving_mails, folder=FOLDER_OF_MOVES, sleep=sleep
        )
        self._threads: ThreadPoolExecutor
        self._decided: Decided
        self._outcome: MoveOutcome
        self._requarantined: set[EnqueueId] = set()

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
        """Finish what earlier moves of this queue left, then move these mails. Moves mails in doubt
        only with `accept_duplicates`. Updates `outcome` as it goes. `due`: when the mails are to be
        delivered, at most 30 days ahead; `into` may then be their own queue.

        Raises Refused during another move, UnknownQueue, ClockSkew, StoreUnavailable (ask again).
        """
        self._outcome = outcome = outcome or MoveOutcome()
        if due is not None:
            require_delays(self._stores, into, self._clock)
            due, outcome.later = instant(epoch_ms(due)), outcome.later or 0  # as it is stored
        self._decided = Decided("delay" if due else "move", why, who, moved_to=into, due=due)
        with self._lock.held(), ThreadPoolExecutor(_THREADS) as self._threads:
            self._finish_earlier(accept_duplicates=accept_duplicates)
            for batch in batches(rows, self._at_once):
                taken: _Mails = []
                outcome.examined.update(row.enqueue_id for row in batch)
                sooner = _sooner(self._stores, self._queue, batch, self._clock, outcome, due=due)
                try:
                    for part in batches(sooner, _BETWEEN_RENEWALS):
                        self._lock.renew()
                        self._take_all(part, taken)
                        if not self._history.has_workers():  # so that a kill leaves fewer in doubt
                            mails, taken = taken, []
                            self._enqueue_in_target(mails)
                finally:  # only now can it be proved that no worker completed the marked mails
                    # A copy: after a second signal, threads may still add to `taken`.
                    self._enqueue_in_target([*taken])
        return outcome

    def _finish_earlier(self, *, accept_duplicates: bool) -> None:
        outcome, earlier = self._outcome, list(self._quarantine.mails(serial=True))
        unproved = {mail.enqueue_id for mail in earlier if mail.state is State.KEPT}
        self._history.begin()
        in_flight = self._history.wait_for_handlers(unproved, self._lock.renew)
        stages = self._stages(unproved)
        completed = self._history.done | {id_ for id_, record in stages.items() if record.closed}
        marked: _Mails = []
        partitions = cache(lambda table: list(table.partitions(self._queue)))  # a scan of all keys
        for part in batches(earlier, _BETWEEN_RENEWALS):
            self._lock.renew()
            for mail in part:
                if mail.state in _PROVED:
                    marked.append(mail)
                elif mail.enqueue_id in completed or not self._may_be_marked(mail, partitions):
                    self._quarantine.withdraw(mail)  # it is live in its queue, or was delivered
                    continue
                elif accept_duplicates:
                    self._lock.require()
                    self._mark(mail, marked)
                elif mail.enqueue_id in in_flight:
                    outcome.pending += 1
                else:
                    outcome.doubt(mail)
                outcome.examined.add(mail.enqueue_id)
        for into in {mail.moved_to for mail in marked}:
            if not self._stores.rabbitmq.exists(QueueName(into)):
                raise UnknownQueue(
                    f"mails of {self._queue} wait for {into}, to which an earlier move was cut off "
                    f"and was removed since: `{command_line('queue create', into)}` creates it"
                )
        for batch in batches(marked, self._at_once):
            self._enqueue_in_target(batch, accept_duplicates=accept_duplicates)
        self._quarantine.sweep()

    def _may_be_marked(self, mail: QuarantinedMail, partitions: Partitions) -> bool:
        """Whether the cut-off move may have marked it. A missing mark alone proves nothing."""
        where, decided = (self._stores.tables, self._queue), mail.state is State.KEPT
        try:
            return decided and is_finished(
                *where, mail.enqueue_id, every_replica=True, partitions=partitions
            )
        except StoreUnavailable:  # the replica that does not answer may have the mark
            return True

    def _take_all(self, rows: Sequence[ViewRow], taken: _Mails) -> None:
        """Marks the mails and adds them to `taken`. A worker may yet have completed one of them."""
        in_flight, before, outcome = self._history.observe(), len(taken), self._outcome
        if self._history.is_cut:  # a worker may have any of them
            in_flight = frozenset(row.enqueue_id for row in rows)
        stages = self._stages(row.enqueue_id for row in rows)
        free = outcome.without_holder(rows, in_flight, stages)
        kept = self._map(self._copy, free)
        kept = [mail for mail in kept if mail.state is not State.KEPT]  # KEPT: counted as in doubt
        self._lock.require()
        self._lock.renew()
        if not taken:  # mails that were completed before have their mark
            self._history.begin()
        self._history.observe()
        self._map(lambda mail: self._take(mail, taken), kept, renews=False)
        self._history.observe()
        empty = [mail.enqueue_id for mail in kept if mail.content is not Content.KEPT]
        lost = len(empty) - len(self._stores.tables.deleted.marked(self._queue, empty))
        outcome.lost += lost  # without those that are done: they have no content either
        outcome.gone += len(kept) - lost - (len(taken) - before)

    def _take(self, mail: QuarantinedMail, taken: _Mails) -> None:
        """Marks the mail in its queue. Withdraws a mail without content, done or deleted."""
        decided = None
        if mail.content is Content.KEPT and mail.state is State.CLOSING:
            decided = self._quarantine.advance(mail, State.KEPT)
            crash.point("move:decided")
        if decided is None or self._stores.tables.deleted.is_marked(self._queue, mail.enqueue_id):
            self._quarantine.withdraw(decided or mail)
            return
        self._lock.require()  # a next move would withdraw a decided mail that has no mark
        self._mark(decided, taken)

    def _mark(self, decided: QuarantinedMail, taken: _Mails) -> None:
        """Marks the mail; in doubt if withdrawn meanwhile. Not `taken` if another run brings it."""
        self._stores.tables.deleted.mark_many(self._queue, [decided.enqueue_id])
        crash.point("move:marked")
        marked, alarms = self._quarantine.keep_marked(decided)
        crash.point("move:kept")
        if alarms:
            self._requarantined.add(marked.enqueue_id)
        if marked.state is State.KEPT:
            taken.append(marked)

    def _record_proof(self, marked: QuarantinedMail) -> QuarantinedMail | None:
        """The row, TAKEN or later: no worker completed the mail. None: another process has it."""
        if marked.state in _PROVED:
            return marked
        taken = self._quarantine.advance(marked, State.TAKEN)
        crash.point("move:taken")
        return taken

    def _copy(self, row: ViewRow) -> QuarantinedMail:
        age = max(timedelta(0), self._clock() - row.enqueued_time)
        holder = Holder("", "waiting", row.enqueued_time, age)
        return self._quarantine.keep(row.item, holder, self._decided)

    def _enqueue_in_target(self, mails: _Mails, *, accept_duplicates: bool = False) -> None:
        """Enqueues the marked mails in their new queue, once it is proved that no worker completed
        them. Leaves out recipients that a handler served meanwhile.
        """
        outcome, marked = self._outcome, {m.enqueue_id for m in mails if m.state not in _PROVED}
        in_flight = self._history.wait_for_handlers(marked, self._lock.renew)
        stages = self._stages(mail.enqueue_id for mail in mails)
        closed = {id_ for id_, record in stages.items() if record.closed}
        sending = {id_ for id_, record in stages.items() if record.recipients_at(Stage.SENDING)}
        done = marked & (self._history.done | closed)
        unknown = marked if self._history.missed else marked & (sending | self._requarantined)
        doubtful = set() if accept_duplicates else unknown - in_flight - done
        outcome.pending += len(in_flight - done)
        outcome.gone += len(done)
        for mail in mails:
            if mail.enqueue_id in done:
                self._quarantine.withdraw(mail)
            elif mail.enqueue_id in doubtful:
                outcome.doubt(mail)
        ready = [mail for mail in mails if mail.enqueue_id not in in_flight | done | doubtful]
        self._lock.renew()
        proved = self._map(self._record_proof, ready)

        def release(mail: QuarantinedMail) -> None:
            record = stages.get(mail.enqueue_id)
            if record is not None:
                mail = without(mail, record.recipients_at(Stage.SENT, Stage.FAILED))
            try:
                new_id = self._quarantine.release_within(
                    mail, self._lock, accept_duplicates=accept_duplicates
                )
            except (MayBeDelivered, DeadLetter) as error:  # it stops no other mail
                log.warning("mail %s is left: %s", mail.enqueue_id, error)
                if accept_duplicates:  # it accepted the doubt of MayBeDelivered
                    self._quarantine_without_copy(mail, error)
                else:
                    outcome.doubt(mail)
            else:
                outcome.new_ids.add(new_id)
                new = outcome.moved if mail.moved_to == self._decided.moved_to else outcome.finished
                new[mail.enqueue_id] = new_id

        outcome.gone += proved.count(None)
        for part in batches((mail for mail in proved if mail is not None), _BETWEEN_RENEWALS):
            self._lock.renew()
            self._map(release, part)

    def _quarantine_without_copy(self, mail: QuarantinedMail, error: Exception) -> None:
        """A person releases or discards it. Its blobs are copied anew, if they are still there."""
        why = f"its move found no copy, and it may have been delivered: {error}"
        decided = replace(self._decided, why=why, moved_to=mail.moved_to, due=mail.due)
        item, holder = codec.decode(mail.message), Holder.of(mail)
        quarantine = Quarantine(self._stores, self._queue, self._clock)
        quarantine.keep_failed(item, holder, decided)
        quarantine.record(item, holder, decided, "in doubt", self._clock())
        self._quarantine.withdraw(mail)
        self._outcome.quarantined += 1

    def _map(self, work: Callable[[T], U], items: Sequence[T], *, renews: bool = True) -> list[U]:
        """The results of `work` in order. Raises the first error, also a signal's, once all ended.

        Reads the workers' records meanwhile, which soon forget what was completed. Renews the lock,
        unless `work` checks it itself: a renewal after the lock was lost would hide the loss.
        """
        futures = [self._threads.submit(work, item) for item in items]
        try:
            while wait(futures, _LOOK_SECONDS).not_done:
                self._history.observe()
                if renews:
                    self._lock.renew_if_due()
        finally:
            wait(futures)
        return [future.result() for future in futures]

    def _stages(self, ids: Iterable[EnqueueId]) -> dict[EnqueueId, MailStage]:
        return dict(self._stores.own.mail_stages.by_ids(self._queue, ids))


def forecast(
    stores: Stores,
    queue: QueueName,
    rows: Iterable[ViewRow],
    clock: Clock,
    due: datetime | None = None,
) -> dict[str, int]:
    """Counts what a move of these mails, or their delay until `due`, would do. Creates no table.

    Leaves out the counts that only a move knows: it reads contents and finishes earlier moves.
    Raises as `require_delays`.
    """
    if due is not None:
        require_delays(stores, queue, clock)
    outcome = MoveOutcome(later=None if due is None else 0)
    alive = (record for record in stores.worker_records(queue) if record.is_alive)
    in_flight = frozenset(mail.enqueue_id for record in alive for mail in record.in_flight)
    table = MailStages.existing(stores.cassandra, stores.settings)
    moved = 0
    for batch in batches(rows, _AT_ONCE):
        sooner = _sooner(stores, queue, batch, clock, outcome, due=due)
        ids = [row.enqueue_id for row in sooner]
        stages = {} if table is None else dict(table.by_ids(queue, ids))
        moved += len(outcome.without_holder(sooner, in_flight, stages))
    unknown = {"contentLost", "pending", "doubtful", "finished"}
    counts = outcome.counts | {"moved" if due is None else "delayed": moved}
    return {name: count for name, count in counts.items() if name not in unknown}


def _sooner(
    stores: Stores,
    queue: QueueName,
    rows: Sequence[ViewRow],
    clock: Clock,
    outcome: MoveOutcome,
    *,
    due: datetime | None,
) -> Sequence[ViewRow]:
    """The rows of mails that are due before `due`, without new entries of this very delay."""
    if due is None:
        return rows
    others = [row for row in rows if row.enqueue_id not in outcome.new_ids]
    states = stores.delay_states(queue, [row.enqueue_id for row in others])
    now = clock()  # a run that is repeated after `due` delays nothing
    waiting = {id_: state.due for id_, state in states.items() if state.due}
    sooner = [row for row in others if max(now, waiting.get(row.enqueue_id, now)) < due]
    outcome.later = (outcome.later or 0) + len(others) - len(sooner)
    return sooner


def require_delays(stores: Stores, queue: QueueName, clock: Clock) -> None:
    """Raises Refused where no worker consumes the hop queue, which ends delays; ClockSkew."""
    try:
        consumed = has_consumers(stores.settings.rabbitmq, RabbitNames(queue).hop_queue)
    except QueueMissing:
        consumed = False
    if not consumed:
        raise Refused(
            f"no worker of mailslice consumes {queue}, so nobody would bring delayed mails back: "
            f"start one first ({command_line('worker run --queue', queue, '...')}); "
            "James' own know no delays"
        )
    stores.cassandra.require_clock(clock)
