"""Looks candidates of a redrive up at quorum: the row, the delayed copy, the content."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property

from mailslice.admin.dead_letters import ClassifiedLetter, Letter, content_exists
from mailslice.duties.dead_letters.decide import RedriveFacts
from mailslice.model.batches import batches_by_key
from mailslice.model.mail import EnqueueId, Partition, QueueName
from mailslice.model.slices import bucket_of, slice_start
from mailslice.stores import Stores
from mailslice.view.configuration import Shape, view_shape
from mailslice.view.live_rows import LiveRows

_AT_ONCE = 1000


class LetterLookups:
    """Looks mails up in one queue's view, as it is now."""

    def __init__(self, stores: Stores, queue: QueueName) -> None:
        self._stores = stores
        self._queue = queue

    def redrive_facts(
        self, classified: Sequence[ClassifiedLetter], rows: Mapping[EnqueueId, Partition]
    ) -> RedriveFacts:
        """The facts about letters with these rows. Raises where a store answers nothing."""
        known = {one.letter.key: one.content for one in classified}
        unknown = (one.letter for one in classified if one.content is None)
        ids = {one.letter.enqueue_id for one in classified if one.letter.enqueue_id is not None}
        return RedriveFacts(
            rows,
            frozenset(self._stores.own.delayed_mails.waiting(self._queue, ids)),
            known | content_exists(self._stores, unknown),
        )

    def with_row(self, letters: Iterable[Letter], now: datetime) -> dict[EnqueueId, Partition]:
        """The partition of each letter's row, for letters that have one at browseStart or later.

        The partition that the letter names is read first, then every partition that may have it.
        """
        with_id = [(one.enqueue_id, one) for one in letters if one.enqueue_id is not None]
        rows = self.rows_in((letter.partition, id_) for id_, letter in with_id if letter.partition)
        by_bucket: dict[int, list[EnqueueId]] = {}
        for enqueue_id, letter in with_id:
            if enqueue_id not in rows:
                for bucket in {bucket_of(letter.name or "", n) for n in self.view.bucket_counts}:
                    by_bucket.setdefault(bucket, []).append(enqueue_id)
        if by_bucket:
            live_rows = LiveRows(self._stores.tables, self._queue, self.view)
            partitions = live_rows.partitions(now, by_bucket)
            rows |= self._rows((partition, by_bucket[partition.bucket]) for partition in partitions)
        return rows

    def rows_in(self, named: Iterable[tuple[Partition, EnqueueId]]) -> dict[EnqueueId, Partition]:
        """The mails whose row is in the named partition, at browseStart or later.

        Before browseStart a row without a mark proves nothing: James' clear moves the start first.
        """
        start = self._stores.tables.browse_starts.get(self._queue)
        first = None if start is None else slice_start(start.value, self.view.window)
        named = (pair for pair in named if first is None or pair[0].slice_start >= first)
        return self._rows(batches_by_key(named, _AT_ONCE))

    @cached_property
    def view(self) -> Shape:
        """Read once: windows only shrink and buckets only grow, which hides no existing row."""
        return view_shape(self._stores)

    def _rows(
        self, ids: Iterable[tuple[Partition, Sequence[EnqueueId]]]
    ) -> dict[EnqueueId, Partition]:
        batches = list(ids)
        return {
            row.enqueue_id: partition
            for table in self._stores.tables.existing
            for partition, page in table.existing_ids(self._queue, batches)
            for row in page
        }
