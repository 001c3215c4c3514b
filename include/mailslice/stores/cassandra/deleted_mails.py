"""deletedMailsV2: a row means that the mail of this enqueue id is deleted, or done."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from cassandra.cluster import ResponseFuture

from mailslice.model.batches import batches
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import DELETED_MAILS
from mailslice.stores.cassandra.ids import IDS_A_REQUEST, WIDTH, as_list, id_list, id_set
from mailslice.stores.cassandra.ranges import TokenRange, token_ranges
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.cassandra.table import Statement, Table, insert, select

T = TypeVar("T")
_TOKEN = "token(queuename, enqueueid)"  # noqa: S105 - of the partitioner
ALL = None
"""A value of Marked: all the requested ids are marked."""
Marked = frozenset[bytes] | None
"""The packed ids that are marked; ALL when all requested ones are."""
LISTS_BEFORE_SCAN, MARKS_A_LIST = 200, 600
"""A long look-up scans all marks once its lists of ids have cost as much as the scan would. One
list costs as much as MARKS_A_LIST marks. The scan starts after LISTS_BEFORE_SCAN lists or later.
"""
MARKS_SCANNED = 1_250_000
"""A scan reads at most this many marks, of all queues: a mark takes 100 bytes of memory."""
_SAMPLES, _RANGES = 4096, 32


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
    _sample = Statement(
        f"SELECT queuename FROM {{table}} WHERE {_TOKEN} > ? AND {_TOKEN} <= ? LIMIT 1000"
    )

    def __init__(self, session: CassandraSession) -> None:
        super().__init__(session, session.settings.keyspace, DELETED_MAILS)

    def mark_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        return self._session.submit(self._mark, [queue, enqueue_id])

    def mark_many(self, queue: QueueName, ids: Iterable[EnqueueId]) -> int:
        """Marks all ids; returns how many. After an error some may be marked."""
        return self._session.run_many(self._mark, ([queue, enqueue_id] for enqueue_id in ids))

    def is_marked_future(self, queue: QueueName, enqueue_id: EnqueueId) -> ResponseFuture:
        """A future of one row if the mail is marked, else of none."""
        return self._session.submit(self._one, [queue, enqueue_id])

    def are_marked_future(self, queue: QueueName, ids: Sequence[EnqueueId]) -> ResponseFuture:
        """A future of a row (id) for each of the ids that is marked. At most 100 ids."""
        return self._session.submit(self._by_ids, [queue, ids])

    def is_marked(self, queue: QueueName, enqueue_id: EnqueueId) -> bool:
        return bool(self._session.execute(self._one, [queue, enqueue_id]))

    def is_marked_on_any_replica(self, queue: QueueName, enqueue_id: EnqueueId) -> bool:
        """As `is_marked`, but reads all replicas: one alone may have it. StoreUnavailable."""
        return bool(self._of_all_replicas(self._one, [queue, enqueue_id]))

    def marked(
        self, queue: QueueName, ids: Iterable[EnqueueId], in_flight: int = 8
    ) -> set[EnqueueId]:
        params = ([queue, batch] for batch in batches(ids, IDS_A_REQUEST))
        pages = self._session.map(self._by_ids, params, in_flight)
        return {row[0] for _, rows in pages for row in rows}

    def look_up(
        self,
        queue: QueueName,
        tagged_ids: Iterable[tuple[T, bytes]],
        in_flight: int = 8,
        *,
        ordered: bool = False,
    ) -> Iterator[tuple[T, bytes, Marked]]:
        """For each (tag, packed ids; at most IDS_A_REQUEST): (tag, packed ids, marked ids).

        Before a scan, looks up all lists. After it, only those with an id that it found unmarked.
        """
        lists, how, more = iter(tagged_ids), {"in_flight": in_flight, "ordered": ordered}, None
        yield from self._looked_up(queue, islice(lists, LISTS_BEFORE_SCAN), **how)
        following = list(islice(lists, 1))
        if following and (marks := self._estimate()) <= MARKS_SCANNED:
            more = max(0, int(marks) // MARKS_A_LIST - LISTS_BEFORE_SCAN)
        lists, known = chain(following, lists), None
        yield from self._looked_up(queue, islice(lists, more), **how)
        for batch in batches(lists, LISTS_BEFORE_SCAN):
            known = self._scan(queue) if known is None else known
            unknown = (
                (at, packed)
                for at, (_, packed) in enumerate(batch)
                if not known.issuperset(id_list(packed))
            )
            marked = {at: ids for at, _, ids in self._looked_up(queue, unknown, **how)}
            yield from ((tag, ids, marked.get(at, ALL)) for at, (tag, ids) in enumerate(batch))

    def _looked_up(
        self, queue: QueueName, asked: Iterable[tuple[T, bytes]], **how: Any
    ) -> Iterator[tuple[T, bytes, Marked]]:
        name = queue.encode()
        requests = (_LookUp(name, tag, packed) for tag, packed in asked)
        for request, page in self._session.packed.pages(self._by_ids, requests, raw=True, **how):
            packed = request.packed
            is_all = page.rows * WIDTH == len(packed)
            yield request.tag, packed, ALL if is_all else id_set(page.data)

    def _estimate(self) -> float:
        """How many marks all queues have, by a sample; infinite if the sample cannot be read."""
        with suppress(MailsliceError):
            (sample,) = self._session.packed.pages(self._sample, [[0, 2**64 // _SAMPLES]], 1)
            return float(_SAMPLES * sample[1].rows)
        return math.inf

    def _scan(self, queue: QueueName) -> set[bytes]:
        """Packed ids of the queue's marks; of fewer, if the scan fails on the way."""
        known = set[bytes]()
        with suppress(MailsliceError):
            for page in self.packed_ids_of(queue, token_ranges(self._session, _RANGES), 8):
                known.update(id_list(page))
        return known

    def drop_packed(self, queue: QueueName, lists: Iterable[bytes], in_flight: int = 8) -> int:
        """Deletes the marks of mails that cannot be handled again (I5). Returns how many requests.

        Each of `lists` holds packed ids, at most IDS_A_REQUEST.
        """
        name = queue.encode()
        params = ([name, as_list(packed)] for packed in lists)
        pages = self._session.packed.pages(self._drop_by_ids, params, in_flight, raw=True)
        return sum(1 for _ in pages)

    def packed_ids_of(
        self, queue: QueueName, ranges: Iterable[TokenRange], in_flight: int = 4
    ) -> Iterator[bytes]:
        """Packed ids of the queue's marks in those ranges, by page. Reads all queues' marks."""
        params = ([queue, low, high] for low, high in ranges)
        for _, page in self._session.packed.pages(self._in_range, params, in_flight):
            if page.rows:
                yield page.data


class _LookUp(list[bytes], Generic[T]):
    """The bound values of a request, with its tag and its ids."""

    def __init__(self, queue: bytes, tag: T, packed: bytes) -> None:
        super().__init__([queue, as_list(packed)])
        self.tag = tag
        self.packed = packed
