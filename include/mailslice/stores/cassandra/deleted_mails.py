"""deletedMailsV2: a row means that the mail of this enqueue id is deleted, or done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

from cassandra.cluster import ResponseFuture
from cassandra.query import PreparedStatement

from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import DELETED_MAILS
from mailslice.stores.cassandra.session import CassandraSession

IDS_A_REQUEST = 100
"""Ten times faster than point reads (reference/hot-path.md)."""


Item = TypeVar("Item", bound=tuple[Any, ...])


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
        return self._session.run_many(self._mark, ([queue, enqueue_id] for enqueue_id in ids), in_flight)

    def is_marked_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """A future whose rows are not empty when the mail is marked."""
        return self._session.submit(self._one, [queue, enqueue_id])

    def are_marked_future(self, queue: QueueName, ids: Sequence[EnqueueId]) -> ResponseFuture:
        """A future whose rows begin with the ids of those that are marked; up to 100."""
        return self._session.submit(self._some, [queue, ids])

    def is_marked(self, queue: QueueName, enqueue_id: EnqueueId) -> bool:
        """Whether the mail is marked."""
        return bool(self._session.execute(self._one, [queue, enqueue_id]))

    def marked(self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8) -> set[EnqueueId]:
        """Those of `ids` that are marked."""
        return {row[0] for _, rows in self._session.map(self._some, self._chunks(queue, ids), in_flight) for row in rows}

    def checked(self, queue: QueueName, items: Iterable[Item], in_flight: int = 16) -> Iterator[tuple[list[Item], set[EnqueueId]]]:
        """Of items whose first part is an enqueue id: 100 at a time, in their order, those of them that are marked. Items are drawn as they are needed."""
        remaining = iter(items)
        chunks = (_Chunk(queue, chunk) for chunk in iter(lambda: list(islice(remaining, IDS_A_REQUEST)), []))
        for chunk, rows in self._session.map(self._some, chunks, in_flight, ordered=True):
            yield chunk.items, {row[0] for row in rows}  # type: ignore[attr-defined]

    def drop_many(self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 128) -> int:
        """Delete the marks; how many requests. Only for mails that cannot be handled again (design, I5)."""
        return self._session.run_many(self._drop, ([queue, enqueue_id] for enqueue_id in ids), in_flight)

    def drop_in_chunks(self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8) -> int:
        """As `drop_many`, IDS_A_REQUEST marks a request: ten times faster (reference/spark-cassandra.md); how many requests."""
        return self._session.run_many(self._drop_some, self._chunks(queue, ids), in_flight)

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
        return self._session.prepare(f"INSERT INTO {self._name} (queuename, enqueueid) VALUES (?, ?)")

    @cached_property
    def _one(self) -> PreparedStatement:
        return self._session.prepare(f"SELECT enqueueid FROM {self._name} WHERE queuename = ? AND enqueueid = ?")

    @cached_property
    def _some(self) -> PreparedStatement:
        return self._session.prepare(f"SELECT enqueueid FROM {self._name} WHERE queuename = ? AND enqueueid IN ?")

    @cached_property
    def _drop(self) -> PreparedStatement:
        return self._session.prepare(f"DELETE FROM {self._name} WHERE queuename = ? AND enqueueid = ?")

    @cached_property
    def _drop_some(self) -> PreparedStatement:
        return self._session.prepare(f"DELETE FROM {self._name} WHERE queuename = ? AND enqueueid IN ?")

    @cached_property
    def _all(self) -> PreparedStatement:
        return self._session.prepare(f"SELECT queuename, enqueueid FROM {self._name}")


class _Chunk(list[object]):
    """The bound parameters of a request, which remember what they were made of."""

    def __init__(self, queue: QueueName, items: list[Any]) -> None:
        super().__init__([queue, [item[0] for item in items]])
        self.items = items
