"""Looks candidates of a redrive up at quorum: the row, the delayed copy, the content."""

from __future__ import annotations

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

    def redrive_facts(self, letters: Sequence[ClassifiedLetter], now: datetime) -> RedriveFacts:
        """The facts about these letters. Raises where a store does not answer."""
        ids = [
            classified.letter.enqueue_id
            for classified in letters
            if classified.letter.enqueue_id is not None
        ]
        present = content_there(
            self._stores,
            (classified.letter for classified in letters if classified.content is None),
        )
        content = {classified.letter.key for classified in letters if classified.content} | {
            key for key, is_present in present.items() if is_present
        }
        return RedriveFacts(
            self.with_row([classified.letter for classified in letters], now),
            frozenset(self.delayed(ids)),
            frozenset(content),
        )

    def with_row(self, letters: Iterable[Letter], now: datetime) -> dict[EnqueueId, Partition]:
        """The partition of each letter's row, for letters that have one at browseStart or later.

        Before browseStart a row without a mark proves nothing: James' clear moves the start first.

        First where the letter says that the row is, then everywhere that it can be.
        """
        view = self.view
        start = self._stores.tables.browse_starts.read(self._queue)
        first = None if start is None else slice_start(start.value, view.window)
        with_id = [letter for letter in letters if letter.enqueue_id is not None]
        named = (
            (letter.partition, letter)
            for letter in with_id
            if letter.partition is not None
            and (first is None or letter.partition.slice_start >= first)
        )
        rows = self._in(_by_partition(named))
        rest = [letter for letter in with_id if letter.enqueue_id not in rows]
        return rows | (self._anywhere(rest, view, now) if rest else {})

    @cached_property
    def view(self) -> Shape:
        """Read once: windows only shrink and buckets only grow, which hides no existing row."""
        return view_shape(self._stores)

    def delayed(self, ids: Iterable[EnqueueId]) -> set[EnqueueId]:
        """Those of which a copy waits in a delay level."""
        rows = (
            (enqueue_id, self._stores.own.delayed_mails.read(self._queue, enqueue_id))
            for enqueue_id in dict.fromkeys(ids)
        )
        return {enqueue_id for enqueue_id, row in rows if row is not None and not row.published}

    def _anywhere(
        self, letters: Sequence[Letter], view: Shape, now: datetime
    ) -> dict[EnqueueId, Partition]:
        by_bucket: dict[int, list[EnqueueId]] = {}
        for letter in letters:
            for bucket in {bucket_of(letter.name or "", count) for count in view.bucket_counts}:
                if letter.enqueue_id is not None:
                    by_bucket.setdefault(bucket, []).append(letter.enqueue_id)
        partitions = LiveRows(self._stores.tables, self._queue, view).partitions(now, by_bucket)
        return self._in((partition, by_bucket[partition.bucket]) for partition in partitions)

    def _in(
        self, ids: Iterable[tuple[Partition, Sequence[EnqueueId]]]
    ) -> dict[EnqueueId, Partition]:
        batches = list(ids)
        return {
            row.enqueue_id: partition
            for table in self._stores.tables.existing
            for partition, page in table.some_ids(self._queue, batches)
            for row in page
        }


def _by_partition(
    named: Iterable[tuple[Partition, Letter]],
) -> list[tuple[Partition, list[EnqueueId]]]:
    ids: dict[Partition, list[EnqueueId]] = {}
    for partition, letter in named:
        if letter.enqueue_id is not None:
            ids.setdefault(partition, []).append(letter.enqueue_id)
    return list(ids.items())
