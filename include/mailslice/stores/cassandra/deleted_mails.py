"""deletedMailsV2: a row means that the mail of this enqueue id is deleted, or done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Generic, TypeVar

from cassandra import ConsistencyLevel
from cassandra.cluster import ResponseFuture
from cassandra.query import PreparedStatement

from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import DELETED_MAILS
from mailslice.stores.cassandra.ids import IDS_A_REQUEST, WIDTH, as_list, each_of
from mailslice.stores.cassandra.ranges import TokenRange
from mailslice.stores.cassandra.session import CassandraSession

T = TypeVar("T")
ALL = None
"""Every one of the ids that were asked for is marked."""
Marked = frozenset[bytes] | None
"""Those of some packed ids that are marked; ALL when all are, which is said without looking at each."""


class DeletedMails:
    """The deleted marks."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._name = f"{session.settings.keyspace}.{DELETED_MAILS}"

    def prepare(self) -> None:
        """Prepare what the hot path needs: its first use, on an event loop, would block that for a round trip, or for ten seconds when the store is away."""
        _ = self._mark, self._one, self._some

    def mark_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """Mark without waiting."""
        return self._session.submit(self._mark, [queue, enqueue_id])

    def mark_many(self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 128) -> int:
        """Mark all, and return when every mark is written; how many. The first error is raised: some may be marked then."""
        return self._session.run_many(
            self._mark, ([queue, enqueue_id] for enqueue_id in ids), in_flight
        )

    def is_marked_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """A future whose rows are not empty when the mail is marked."""
        return self._session.submit(self._one, [queue, enqueue_id])

    def are_marked_future(self, queue: QueueName, ids: Sequence[EnqueueId]) -> ResponseFuture:
        """A future whose rows begin with the ids of those that are marked; up to 100."""
        return self._session.submit(self._some, [queue, ids])

    def is_marked(self, queue: QueueName, enqueue_id: EnqueueId) -> bool:
        """Whether the mail is marked."""
        return bool(self._session.execute(self._one, [queue, enqueue_id]))

    def is_marked_on_any_replica(self, queue: QueueName, enqueue_id: EnqueueId) -> bool:
        """As `is_marked`, by all replicas: a mark that was not answered may be on one of them alone.

        Raises StoreUnavailable when one is away.
        """
        bound = self._one.bind([queue, enqueue_id])
        bound.consistency_level = ConsistencyLevel.ALL
        bound.is_idempotent = False  # no other node could answer for the one that is away
        return bool(self._session.execute(bound))

    def marked(
        self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8
    ) -> set[EnqueueId]:
        """Those of `ids` that are marked."""
        return {
            row[0]
            for _, rows in self._session.map(self._some, self._chunks(queue, ids), in_flight)
            for row in rows
        }

    def look_up(
        self,
        queue: QueueName,
        asked: Iterable[tuple[T, bytes]],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[T, bytes, Marked]]:
        """Of each (what, packed ids; at most IDS_A_REQUEST): the same two, and those that are marked. Drawn as they are needed; no UUID is made."""
        name = queue.encode()
        wanted = (_Asked(name, what, packed) for what, packed in asked)
        for each, page in self._session.packed.pages(
            self._some, wanted, in_flight, ordered=ordered, raw=True
        ):
            yield (
                each.what,
                each.packed,
                ALL if page.rows * WIDTH == len(each.packed) else each_of(page.data),
            )

    def drop_many(self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 128) -> int:
        """Delete the marks; how many requests. Only for mails that cannot be handled again (design, I5)."""
        return self._session.run_many(
            self._drop, ([queue, enqueue_id] for enqueue_id in ids), in_flight
        )

    def drop_in_chunks(self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8) -> int:
        """As `drop_many`, IDS_A_REQUEST marks a request: ten times faster (reference/spark-cassandra.md); how many requests."""
        return self._session.run_many(self._drop_some, self._chunks(queue, ids), in_flight)

    def drop_packed(self, queue: QueueName, lists: Iterable[bytes], in_flight: int = 8) -> int:
        """As `drop_in_chunks`, of packed ids, at most IDS_A_REQUEST in a list; how many requests."""
        name = queue.encode()
        return sum(
            1
            for _ in self._session.packed.pages(
                self._drop_some, ([name, as_list(packed)] for packed in lists), in_flight, raw=True
            )
        )

    def packed_ids_of(
        self, queue: QueueName, ranges: Iterable[TokenRange], in_flight: int = 4
    ) -> Iterator[bytes]:
        """Packed ids of the queue's marks in those token ranges, page by page.

        A scan: Cassandra reads the marks of all queues, and sends this queue's.
        """
        asked = ([queue, low, high] for low, high in ranges)
        for _, page in self._session.packed.pages(self._in_range, asked, in_flight):
            if page.rows:
                yield page.data

    def ids(self, queue: QueueName) -> Iterator[EnqueueId]:
        """Every marked id of the queue: a scan of the whole table, for sweeps and tests."""
        for name, enqueue_id in self._session.stream(self._all):
            if name == queue:
                yield enqueue_id

    @staticmethod
    def _chunks(queue: QueueName, ids: Iterable[EnqueueId]) -> Iterator[Sequence[object]]:
        remaining = iter(ids)
        while chunk := list(islice(remaining, IDS_A_REQUEST)):
            yield [queue, chunk]

    @cached_property
    def _mark(self) -> PreparedStatement:
        return self._session.prepare(
            f"INSERT INTO {self._name} (queuename, enqueueid) VALUES (?, ?)"
        )

    @cached_property
    def _one(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT enqueueid FROM {self._name} WHERE queuename = ? AND enqueueid = ?"
        )

    @cached_property
    def _some(self) -> PreparedStatement:
        return self._session.prepare(
            f"SELECT enqueueid FROM {self._name} WHERE queuename = ? AND enqueueid IN ?",
            paged=False,
        )

    @cached_property
    def _drop(self) -> PreparedStatement:
        return self._session.prepare(
            f"DELETE FROM {self._name} WHERE queuename = ? AND enqueueid = ?"
        )

    @cached_property
    def _drop_some(self) -> PreparedStatement:
        return self._session.prepare(
            f"DELETE FROM {self._name} WHERE queuename = ? AND enqueueid IN ?"
        )

    @cached_property
    def _in_range(self) -> PreparedStatement:
        at = "token(queuename, enqueueid)"
        return self._session.prepare(
            f"SELECT enqueueid FROM {self._name} WHERE queuename = ? AND {at} > ? AND {at} <= ? "
            "ALLOW FILTERING"
        )

    @cached_property
    def _all(self) -> PreparedStatement:
        return self._session.prepare(f"SELECT queuename, enqueueid FROM {self._name}")


class _Asked(list[bytes], Generic[T]):
    """The bound values of a request, which remember what they were asked for."""

    def __init__(self, queue: bytes, what: T, packed: bytes) -> None:
        super().__init__([queue, as_list(packed)])
        self.what = what
        self.packed = packed
