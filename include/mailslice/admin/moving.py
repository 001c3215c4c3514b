"""Moves mails from one queue to another: each becomes one new entry there, with its own blobs.

The steps of a mail: a copy of row and content, in a table and a folder for moves; the decision; the
deleted mark in its queue; `taken`, once no worker completed it; the new entry. After a kill before
the mark the copy is removed, and the mail stays in its queue. A mail that is taken is finished.
A mail that may have a mark and is not taken is in doubt: it may have been delivered (ADR 87).
James deletes the blobs of a marked mail when it drops its message: the new entry refers to others.
A delay is a move into the mail's own queue, as a delayed entry.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from itertools import islice
from typing import TypeVar

from mailslice.admin.evidence import Partitions, is_over
from mailslice.admin.holds import MOST_SKEW, SKEWED
from mailslice.admin.leased_lock import LEASE, LeasedLock
from mailslice.admin.quarantine import Decided, Holder, MayBeDelivered, Quarantine
from mailslice.admin.worker_history import WorkerHistory
from mailslice.codec import message as codec
from mailslice.codec.row import epoch_ms, instant
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.clock import Clock
from mailslice.model.errors import QueueMissing, Refused, StoreUnavailable, UnknownQueue
from mailslice.model.mail import EnqueueId, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.model.stages import MailStage, Stage
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import MailStages, QuarantinedMail
from mailslice.stores.cassandra.own.quarantine import Content, State
from mailslice.stores.rabbitmq.publishing import has_consumers

_MOST_NAMES = 100
T = TypeVar("T")
U = TypeVar("U")
_Mails = list[QuarantinedMail]
FOLDER_OF_MOVES = "moving"
_AT_ONCE = 1000
"""Mails between two waits for the workers' records."""
_BETWEEN_RENEWALS = 100
_THREADS = 8
_PATIENCE = timedelta(minutes=1)
"""For handlers that have a mail when it is marked."""
_PROVED = (State.TAKEN, State.RELEASING, State.RELEASED)
"""States of a mail that no worker completed."""


@dataclass(slots=True)
class MoveOutcome:
    """What became of the mails. `moved` has the new enqueue ids by the old.

    `gone`: completed or deleted meanwhile. `in_handler`: a worker has them, so they were left.
    `lost`: without content; they stay. `pending`: taken out of the queue, and not in the other one
    yet, because a handler still has them: move again to finish. `doubtful`: taken out of the queue,
    and nothing shows whether they were delivered since; their content is kept. `finished`: as
    `moved`, of earlier moves to other queues. Of a delay `moved` are the delayed ones; `later`:
    they wait until then, or for longer, anyway. `examined`: the mails that are counted.
    """

    moved: dict[EnqueueId, EnqueueId] = field(default_factory=dict)
    finished: dict[EnqueueId, EnqueueId] = field(default_factory=dict)
    examined: set[EnqueueId] = field(default_factory=set)
    gone: int = 0
    in_handler: int = 0
    lost: int = 0
    pending: int = 0
    doubtful: int = 0
    later: int | None = None
    doubtful_names: list[str] = field(default_factory=list)
    """Of the first mails in doubt."""

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
            "finished": len(self.finished),
            **delay,
        }

    @property
    def names(self) -> dict[str, list[str]]:
        """For answers and decisions: of mails in doubt, where there are any."""
        return {"doubtfulNames": self.doubtful_names} if self.doubtful_names else {}

    def doubt(self, mail: QuarantinedMail) -> None:
        """Count it, and name it: a person looks for its name in the log of the next hop."""
        self.doubtful += 1
        if len(self.doubtful_names) < _MOST_NAMES:
            self.doubtful_names.append(mail.name)

    def without_holder(
        self,
        rows: Sequence[ViewRow],
        in_flight: Collection[EnqueueId],
        stages: Mapping[EnqueueId, MailStage],
    ) -> list[ViewRow]:
        """The rows of mails that no worker has; the others are counted."""
        free = []
        for row in rows:
            record = stages.get(row.enqueue_id)
            if row.enqueue_id in in_flight or (record and record.those(Stage.SENDING)):
                self.in_handler += 1
            elif record and record.closed:
                self.gone += 1
            else:
                free.append(row)
        return free

    def shown_ids(self, limit: int) -> dict[str, str]:
        """New enqueue ids by the old, of the first mails."""
        return {str(old): str(new) for old, new in islice(self.moved.items(), limit)}

    def problem(self, option: str) -> str | None:
        """Why mails are left, and the option that moves those in doubt; None: none is."""
        if not (self.pending or self.doubtful):
            return None
        return (
            f"{self.pending} mails are in a handler yet (move again to finish), {self.doubtful} "
            "were taken out of their queue and may have been delivered since "
            f"({option} moves them); their content is kept"
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
        self._right = LeasedLock(
            stores, f"move/{queue}", f"moves mails of {queue}", sleep=sleep, lease=lease
        )
        self._quarantine = Quarantine(
            stores, queue, clock, table=stores.own.moving_mails, folder=FOLDER_OF_MOVES, sleep=sleep
        )
        self._threads: ThreadPoolExecutor
        self._into: QueueName
        self._kept_anew: set[EnqueueId] = set()

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

        Raises Refused while another moves mails of the queue, ClockSkew, StoreUnavailable: again.
        """
        outcome, self._into = outcome or MoveOutcome(), into
        if due is not None:
            require_delays(self._stores, into, self._clock)
            due, outcome.later = instant(epoch_ms(due)), outcome.later or 0  # as it is stored
        decided = Decided("delay" if due else "move", why, who, moved_to=into, due=due)
        with self._right.held(), ThreadPoolExecutor(_THREADS) as self._threads:
            self._finish_earlier(outcome, accept_duplicates=accept_duplicates)
            for batch in batches(rows, self._at_once):
                taken: _Mails = []
                outcome.examined.update(row.enqueue_id for row in batch)
                sooner = _sooner(self._stores, self._queue, batch, self._clock, outcome, due=due)
                try:
                    for part in batches(sooner, _BETWEEN_RENEWALS):
                        self._right.renew()
                        self._take_all(part, decided, outcome, taken)
                        if not self._history.has_workers():  # a kill leaves fewer in doubt
                            some, taken = taken, []
                            self._bring(some, outcome)
                finally:  # of what is marked nobody knows later whether a worker completed it
                    # After a second signal threads add to `taken` yet.
                    self._bring([*taken], outcome)
        return outcome

    def _finish_earlier(self, outcome: MoveOutcome, *, accept_duplicates: bool) -> None:
        left = list(self._quarantine.mails(serial=True))
        undecided = {one.enqueue_id for one in left if one.state is State.KEPT}
        self._history.begin()
        in_flight = self._history.wait_for_handlers(undecided, self._right.renew)
        stages = self._stages(undecided)
        over = self._history.done | {one for one, record in stages.items() if record.closed}
        marked: _Mails = []
        partitions = cache(lambda table: list(table.partitions(self._queue)))  # a scan of all keys
        for part in batches(left, _BETWEEN_RENEWALS):
            self._right.renew()
            for mail in part:
                if mail.state in _PROVED:
                    marked.append(mail)
                elif mail.enqueue_id in over or not self._may_be_marked(mail, partitions):
                    self._quarantine.withdraw(mail)  # it is its queue's, or was delivered there
                    continue
                elif accept_duplicates and mail.content is Content.KEPT:
                    self._right.require()
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
                    f"and which was removed since: `mailslice queue create {into}` creates it"
                )
        for batch in batches(marked, self._at_once):
            self._bring(batch, outcome, accept_duplicates=accept_duplicates)
        self._quarantine.sweep()

    def _may_be_marked(self, mail: QuarantinedMail, partitions: Partitions) -> bool:
        """Whether the move that was cut off may have marked it: no mark alone says nothing."""
        where, decided = (self._stores.tables, self._queue), mail.state is State.KEPT
        try:
            return decided and is_over(
                *where, mail.enqueue_id, every_replica=True, partitions=partitions
            )
        except StoreUnavailable:  # the replica that is away may have the mark
            return True

    def _take_all(
        self, rows: Sequence[ViewRow], decided: Decided, outcome: MoveOutcome, taken: _Mails
    ) -> None:
        """Adds those of the mails that are marked now to `taken`, whose end is unknown yet."""
        in_flight, before = self._history.observe(), len(taken)
        stages = self._stages(row.enqueue_id for row in rows)
        free = outcome.without_holder(rows, in_flight, stages)
        kept = self._each(lambda row: self._keep(row, decided), free)
        kept = [mail for mail in kept if mail.state is not State.KEPT]  # else in doubt, as counted
        self._right.require()
        self._right.renew()
        if not taken:  # what was completed before is marked
            self._history.begin()
        self._history.observe()
        self._each(lambda mail: self._take(mail, taken), kept, renews=False)
        self._history.observe()
        empty = [mail.enqueue_id for mail in kept if mail.content is not Content.KEPT]
        lost = len(empty) - len(self._stores.tables.deleted.marked(self._queue, empty))
        outcome.lost += lost  # a mail that is done has no content either
        outcome.gone += len(kept) - lost - (len(taken) - before)

    def _take(self, mail: QuarantinedMail, taken: _Mails) -> None:
        """Marked in its queue; not where it has no content, or is done or deleted."""
        decided = None
        if mail.content is Content.KEPT and mail.state is State.CLOSING:
            decided = self._quarantine.advance(mail, State.KEPT)
            crash.point("move:decided")
        if decided is None or self._stores.tables.deleted.is_marked(self._queue, mail.enqueue_id):
            self._quarantine.withdraw(decided or mail)
            return
        self._right.require()  # the next move withdraws what is decided and has no mark
        self._mark(decided, taken)

    def _mark(self, decided: QuarantinedMail, taken: _Mails) -> None:
        """In doubt where another move withdrew it meanwhile; not `taken` where that brings it."""
        self._stores.tables.deleted.mark_many(self._queue, [decided.enqueue_id])
        crash.point("move:marked")
        marked, anew = self._quarantine.keep_marked(decided)
        crash.point("move:kept")
        if anew:
            self._kept_anew.add(marked.enqueue_id)
        if marked.state is State.KEPT:
            taken.append(marked)

    def _proved(self, marked: QuarantinedMail) -> QuarantinedMail | None:
        """Taken, since no worker completed it; None: another works on it."""
        if marked.state in _PROVED:
            return marked
        taken = self._quarantine.advance(marked, State.TAKEN)
        crash.point("move:taken")
        return taken

    def _keep(self, row: ViewRow, decided: Decided) -> QuarantinedMail:
        age = max(timedelta(0), self._clock() - row.enqueued_time)
        holder = Holder("", "waiting", row.enqueued_time, age)
        return self._quarantine.keep(row.item, holder, decided)

    def _bring(
        self,
        mails: Sequence[QuarantinedMail],
        outcome: MoveOutcome,
        *,
        accept_duplicates: bool = False,
    ) -> None:
        """Marked mails into their queue, once it is known that no worker completed them. Recipients
        whom a handler served meanwhile are left out.
        """
        marked = {mail.enqueue_id for mail in mails if mail.state not in _PROVED}
        in_flight = self._history.wait_for_handlers(marked, self._right.renew)
        stages = self._stages(mail.enqueue_id for mail in mails)
        closed = {one for one, record in stages.items() if record.closed}
        sending = {one for one, record in stages.items() if record.those(Stage.SENDING)}
        done = marked & (self._history.done | closed)
        unknown = marked if self._history.missed else marked & (sending | self._kept_anew)
        doubtful = set() if accept_duplicates else unknown - in_flight - done
        outcome.pending += len(in_flight - done)
        outcome.gone += len(done)
        for mail in mails:
            if mail.enqueue_id in done:
                self._quarantine.withdraw(mail)
            elif mail.enqueue_id in doubtful:
                outcome.doubt(mail)
        ready = [one for one in mails if one.enqueue_id not in in_flight | done | doubtful]
        self._right.renew()
        proved = self._each(self._proved, ready)

        def release(mail: QuarantinedMail) -> None:
            left = _for_those_left(mail, stages.get(mail.enqueue_id))
            try:
                new_id = self._quarantine.release_within(
                    left, self._right, accept_duplicates=accept_duplicates
                )
            except MayBeDelivered:
                outcome.doubt(mail)
            else:
                brought = outcome.moved if mail.moved_to == self._into else outcome.finished
                brought[mail.enqueue_id] = new_id

        outcome.gone += proved.count(None)
        for part in batches((mail for mail in proved if mail is not None), _BETWEEN_RENEWALS):
            self._right.renew()
            self._each(release, part)

    def _each(self, work: Callable[[T], U], items: Sequence[T], *, renews: bool = True) -> list[U]:
        """The results in order. All of them end before the first error is raised, a signal's too.
        The right is kept meanwhile, but for `work` that goes by it: whoever lost it must not find
        it again.
        """
        futures = [self._threads.submit(work, item) for item in items]
        try:
            while wait(futures, self._right.pause if renews else None).not_done:
                self._right.renew()
        finally:
            wait(futures)
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def _stages(self, ids: Iterable[EnqueueId]) -> dict[EnqueueId, MailStage]:
        return dict(self._stores.own.mail_stages.by_ids(self._queue, ids))


def foreseen(
    stores: Stores,
    queue: QueueName,
    rows: Iterable[ViewRow],
    clock: Clock,
    due: datetime | None = None,
) -> dict[str, int]:
    """What a move of these mails, or their delay until `due`, would do now. Creates no table.

    These are counts of MoveOutcome, but for those that only the move itself finds out: it alone
    looks at contents, and at what earlier moves left. Raises what refuses a delay.
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
    """Those that are delivered before `due`. The rows may be new entries of this very delay."""
    if due is None:
        return rows
    new = set(outcome.moved.values())
    others = [row for row in rows if row.enqueue_id not in new]
    states = stores.delay_states(queue, [row.enqueue_id for row in others])
    now = clock()  # a run that is repeated too late delays nothing
    waiting = {one: state.due for one, state in states.items() if state.due}
    sooner = [row for row in others if max(now, waiting.get(row.enqueue_id, now)) < due]
    outcome.later = (outcome.later or 0) + len(others) - len(sooner)
    return sooner


def require_delays(stores: Stores, queue: QueueName, clock: Clock) -> None:
    """Raises Refused where no worker would bring delayed mails back; ClockSkew."""
    try:
        consumed = has_consumers(stores.settings.rabbitmq, RabbitNames(queue).hop_queue)
    except QueueMissing:
        consumed = False
    if not consumed:
        raise Refused(
            f"no worker of mailslice consumes {queue}, so nobody would bring delayed mails back: "
            f"start one first (mailslice worker run --queue {queue} ...); James' own know no delays"
        )
    stores.cassandra.require_clock(clock, MOST_SKEW, SKEWED)


def _for_those_left(mail: QuarantinedMail, record: MailStage | None) -> QuarantinedMail:
    """The mail for the recipients whom its stage marks do not call served; for all, without marks.

    Those in doubt are among them: a mail with one comes here by `accept_duplicates` alone.
    """
    left = () if record is None else (*record.remaining, *record.those(Stage.SENDING))
    if not left:
        return mail
    item = codec.decode(mail.message)
    narrowed = replace(item, mail=replace(item.mail, recipients=left))
    return replace(mail, message=codec.encode(narrowed))
