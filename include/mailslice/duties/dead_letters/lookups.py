"""Looks candidates of a redrive up at quorum: the row, the delayed copy, the content."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property

from mailslice.admin.dead_letters import ClassifiedLetter, Letter, content_there
from mailslice.duties.dead_letters.decide import RedriveFacts
from mailslice.model.mail import EnqueueId, Partition, QueueName
from mailslice.model.slices import bucket_of, slice_start
from mailslice.stores import Stores
from mailslice.view.configuration import Shape, view_shape
from mailslice.view.live_rows import LiveRows


class LetterLookups:
    """Looks mails up in one queue's view, as it is now."""

    def __init__(self, stores: Stores, queue: QueueName) -> None:
        self._stores = stores
        self._queue = queue

    def redrive_facts(self, classified: Sequence[ClassifiedLetter], now: datetime) -> RedriveFacts:
        """The facts about these letters. Raises where a store does not answer."""
        letters = [one.letter for one in classified]
        unknown = (one.letter for one in classified if one.content is None)
        present = content_there(self._stores, unknown) | {
            one.letter.key: True for one in classified if one.content
        }
        return RedriveFacts(
            self.with_row(letters, now),
            frozenset(self.delayed(letters)),
            frozenset(key for key, is_present in present.items() if is_present),
        )

    def with_row(self, letters: Iterable[Letter], now: datetime) -> dict[EnqueueId, Partition]:
        """The partition of each letter's row, for letters that have one at browseStart or later.

        Before browseStart a row without a mark proves nothing: James' clear moves the start first.
        The partition that the letter names is read first, then all that the row can be in.
        """
        view = self.view
        start = self._stores.tables.browse_starts.get(self._queue)
        first = None if start is None else slice_start(start.value, view.window)
        named: dict[Partition, list[EnqueueId]] = {}
        with_id = [
            (letter.enqueue_id, letter) for letter in letters if letter.enqueue_id is not None
        ]
        for enqueue_id, letter in with_id:
            partition = letter.partition
            if partition is not None and (first is None or partition.slice_start >= first):
                named.setdefault(partition, []).append(enqueue_id)
        rows = self._rows(named.items())
        by_bucket: dict[int, list[EnqueueId]] = {}
        for enqueue_id, letter in with_id:
            if enqueue_id not in rows:
                for bucket in {bucket_of(letter.name or "", n) for n in view.bucket_counts}:
                    by_bucket.setdefault(bucket, []).append(enqueue_id)
        if by_bucket:
            partitions = LiveRows(self._stores.tables, self._queue, view).partitions(now, by_bucket)
            rows |= self._rows((one, by_bucket[one.bucket]) for one in partitions)
        return rows

    @cached_property
    def view(self) -> Shape:
        """Read once: windows only shrink and buckets only grow, which hides no existing row."""
        return view_shape(self._stores)

    def delayed(self, letters: Iterable[Letter]) -> Iterable[EnqueueId]:
        """Those of which a copy waits in a delay level."""
        ids = {one.enqueue_id for one in letters if one.enqueue_id is not None}
        return self._stores.own.delayed_mails.waiting(self._queue, ids)

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
