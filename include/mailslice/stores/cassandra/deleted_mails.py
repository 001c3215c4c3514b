"""deletedMailsV2: a row means that the mail of this enqueue id is deleted, or done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from cassandra import ConsistencyLevel
from cassandra.cluster import ResponseFuture

from mailslice.model.batches import batches
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import DELETED_MAILS
from mailslice.stores.cassandra.ids import IDS_A_REQUEST, WIDTH, as_list, each_of
from mailslice.stores.cassandra.ranges import TokenRange
from mailslice.stores.cassandra.session import CassandraSession, Params
from mailslice.stores.cassandra.table import Statement, Table, insert, select

T = TypeVar("T")
_TOKEN = "token(queuename, enqueueid)"  # noqa: S105 - of the partitioner
ALL = None
"""Every one of the ids that were asked for is marked."""
Marked = frozenset[bytes] | None
"""Those of some packed ids that are marked; ALL when all are, known without looking at each."""


class DeletedMails(Table):
    """The deleted marks."""

    ON_EVENT_LOOP = ("_mark", "_one", "_by_ids")

    _mark = Statement(insert(("queuename", "enqueueid")))
    _one = Statement(select(("enqueueid",), "queuename = ? AND enqueueid = ?"))
    _by_ids = Statement(select(("enqueueid",), "queuename = ? AND enqueueid IN ?"), paged=False)
    _drop_by_ids = Statement("DELETE FROM {table} WHERE queuename = ? AND enqueueid IN ?")
    _in_range = Statement(
        f"SELECT enqueueid FROM {{table}} WHERE queuename = ? AND {_TOKEN} > ? AND {_TOKEN} <= ? "
        "ALLOW FILTERING"
    )
    _all = Statement("SELECT queuename, enqueueid FROM {table}")

    def __init__(self, session: CassandraSession) -> None:
        super().__init__(session, session.settings.keyspace, DELETED_MAILS)

    def mark_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """Mark without waiting."""
        return self._session.submit(self._mark, [queue, enqueue_id])

    def mark_many(self, queue: QueueName, ids: Iterable[EnqueueId]) -> int:
        """Mark all; how many, once all are written. After an error some may be marked."""
        params = ([queue, enqueue_id] for enqueue_id in ids)
        return self._session.run_many(self._mark, params)

    def is_marked_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """A future whose rows are not empty when the mail is marked."""
        return self._session.submit(self._one, [queue, enqueue_id])

    def are_marked_future(self, queue: QueueName, ids: Sequence[EnqueueId]) -> ResponseFuture:
        """A future whose rows begin with the ids of those that are marked; up to 100."""
        return self._session.submit(self._by_ids, [queue, ids])

    def is_marked(self, queue: QueueName, enqueue_id: EnqueueId) -> bool:
        """Whether the mail is marked."""
        return bool(self._session.execute(self._one, [queue, enqueue_id]))

    def is_marked_on_any_replica(self, queue: QueueName, enqueue_id: EnqueueId) -> bool:
        """As `is_marked`, by all replicas: one may have the mark alone. Raises StoreUnavailable."""
        bound = self._one.bind([queue, enqueue_id])
        bound.consistency_level = ConsistencyLevel.ALL
        bound.is_idempotent = False  # no other node could answer for the one that is away
        return bool(self._session.execute(bound))

    def marked(
        self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8
    ) -> set[EnqueueId]:
        """Those of `ids` that are marked."""
        pages = self._session.map(self._by_ids, self._chunks(queue, ids), in_flight)
        return {row[0] for _, rows in pages for row in rows}

    def look_up(
        self,
        queue: QueueName,
        asked: Iterable[tuple[T, bytes]],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[T, bytes, Marked]]:
        """Of each (what, packed ids; at most IDS_A_REQUEST): these two, and the marked ones."""
        name, pages = queue.encode(), self._session.packed.pages
        requests = (_Asked(name, tag, packed) for tag, packed in asked)
        for asked_for, page in pages(self._by_ids, requests, in_flight, ordered=ordered, raw=True):
            packed = asked_for.packed
            is_all = page.rows * WIDTH == len(packed)
            yield asked_for.tag, packed, ALL if is_all else each_of(page.data)

    def drop_many(self, queue: QueueName, ids: Iterable[EnqueueId]) -> None:
        """Deletes the marks, 100 a request, of mails that cannot be handled again (I5)."""
        self._session.run_many(self._drop_by_ids, self._chunks(queue, ids), in_flight=8)

    def drop_packed(self, queue: QueueName, lists: Iterable[bytes], in_flight: int = 8) -> int:
        """As `drop_many`, of packed ids, at most IDS_A_REQUEST in a list; how many requests."""
        name = queue.encode()
        params = ([name, as_list(packed)] for packed in lists)
        pages = self._session.packed.pages(self._drop_by_ids, params, in_flight, raw=True)
        return sum(1 for _ in pages)

    def packed_ids_of(
        self, queue: QueueName, ranges: Iterable[TokenRange], in_flight: int = 4
    ) -> Iterator[bytes]:
        """Packed ids of the queue's marks in those ranges, by page. All queues' marks are read."""
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
    def _chunks(queue: QueueName, ids: Iterable[EnqueueId]) -> Iterator[Params]:
        return ([queue, batch] for batch in batches(ids, IDS_A_REQUEST))


class _Asked(list[bytes], Generic[T]):
    """The bound values of a request, which remember what they were asked for."""

    def __init__(self, queue: bytes, tag: T, packed: bytes) -> None:
        super().__init__([queue, as_list(packed)])
        self.tag = tag
        self.packed = packed
