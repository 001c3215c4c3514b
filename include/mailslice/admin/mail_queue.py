"""A mail queue as an administrator sees it. Only `content` and `pieces` load content."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import islice

from mailslice.admin.deletions.deletion import Deletion, delete_and_keep, mark_points
from mailslice.admin.evidence import still_live
from mailslice.admin.filters import MailFilter
from mailslice.model import crash
from mailslice.model.batches import batches
from mailslice.model.clock import Clock
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, Partition, QueueName, ViewRow
from mailslice.model.names import queue_name
from mailslice.model.slices import bucket_of
from mailslice.stores import Stores
from mailslice.view.configuration import Shape, view_shape
from mailslice.view.live_rows import (
    BrowseDeadline,
    LiveRows,
    LiveSummary,
    PageReading,
    Position,
    SliceCounts,
    trusted_survivors,
)

_ALL = MailFilter()
_FEW_IDS = 1000
"""Up to this many ids are looked up in a slice (ten requests). For more, all its ids are read."""


class MailQueue:
    """Browses, counts and deletes mails. Reads use the settings' consistency (LOCAL_QUORUM or
    better), so they see every enqueue that returned before.
    """

    def __init__(self, stores: Stores, name: str, clock: Clock) -> None:
        self.name: QueueName = queue_name(name)
        self._stores = stores
        self._clock = clock

    def browse(
        self,
        mail_filter: MailFilter = _ALL,
        limit: int | None = None,
        after: EnqueueId | None = None,
        deadline: BrowseDeadline | None = None,
    ) -> Iterator[ViewRow]:
        """Live mails, oldest first, as a stream. Reading stops at `limit` mails, or at `deadline`,
        also among dead rows.

        `after`: only mails behind that mail in this order; that mail need not be live any more.
        Raises BadInput when no slice has its row.
        """
        if limit is not None and limit < 1:
            return iter(())
        position = None if after is None else self._position(after)
        at_a_time = min(limit, 1000) if limit is not None and mail_filter.is_empty else 1000
        rows = self._matching(self._remembered_live, mail_filter, at_a_time, position, deadline)
        return islice(rows, limit)

    def page(
        self,
        reading: PageReading,
        at_a_time: int,
        latest: datetime | None = None,
        after: Position | EnqueueId | None = None,
        is_skipped: Callable[[datetime], bool] = lambda _: False,
    ) -> Iterator[ViewRow]:
        """As `browse`, as far as `reading` allows; reads `at_a_time` rows a request. Leaves out
        mails enqueued after `latest`, and slices for whose start `is_skipped` returns True.
        """
        live, now = self._remembered_live, self._clock()
        position = after if after is None or isinstance(after, tuple) else self._position(after)
        partitions = (key for key in live.partitions(now) if not is_skipped(key.slice_start))
        return live.rows(live.page(partitions, reading, latest, position), at_a_time)

    def matching(self, mail_filter: MailFilter, limit: int | None = None) -> Iterator[ViewRow]:
        """As `browse`, for callers that change something: it reads every row."""
        return islice(self._matching(self._live, mail_filter, 1000), limit)

    def size(self) -> int:
        """The number of live mails, exact to the last enqueue."""
        return self._remembered_live.count(self._clock())

    def live_summary(self, limit: int) -> LiveSummary | None:
        """Size and oldest mail, as exact as `size`; None if more than `limit` rows must be read."""
        return self._remembered_live.live_summary(self._clock(), limit)

    def slices(self) -> Iterator[SliceCounts]:
        """Live and dead rows of each slice that holds any, oldest first."""
        return self._live.slices(self._clock())

    def delete(
        self, mail_filter: MailFilter, *, dry_run: bool = False, deletion: Deletion | None = None
    ) -> int:
        """Mark the live mails that match as deleted. Returns how many; with `dry_run`, how many it
        would mark. RabbitMQ still delivers their messages: consumers drop them by the mark.

        The mails are kept for MAILSLICE_ADMIN_UNDO_FOR, unless `deletion` says otherwise. Updates
        `deletion` as it goes. May leave mails that are enqueued meanwhile. The consumer that drops
        the message deletes the blobs, or blob_gc does. Raises BadInput for an empty filter: that
        would be `clear`.
        """
        if mail_filter.is_empty:
            raise BadInput(
                f"delete from {self.name}: an empty filter would delete all; give "
                "sender, recipient, name, domain, ids or age, or use clear"
            )
        matching = self._matching(self._live, mail_filter, 1000)
        if dry_run:
            return sum(1 for _ in matching)
        return self._delete(matching, deletion or Deletion())

    def clear(self, deletion: Deletion | None = None) -> int:
        """Mark every live mail as deleted, and keep it as `delete` does. Returns how many. May mark
        mails that are enqueued meanwhile.
        """
        deletion = deletion or Deletion()
        if self._keeps(deletion):
            return self._delete(self._matching(self._live, _ALL, 1000), deletion)
        candidates = self._live.present(self._live.ids(self._clock()))
        return self._mark((candidate[0] for candidate in candidates), deletion)

    def find(self, name: str | None = None, enqueue_id: EnqueueId | None = None) -> list[ViewRow]:
        """The live mails of this name, or the live mail of this enqueue id."""
        if enqueue_id is not None:
            row = self._live.find(self._clock(), enqueue_id)
            return [row] if row is not None and name in {None, row.item.mail.name} else []
        if name is None:
            raise BadInput("find: neither a name nor an enqueue id was given")
        return list(self._matching(self._live, MailFilter(name=name), 1000))

    def still_live(self, latest: Mapping[EnqueueId, Partition]) -> dict[EnqueueId, ViewRow]:
        """The rows of the mails of `latest` that are still live: a few requests a partition."""
        return still_live(self._stores.tables, self.name, self.shape.window, latest)

    def content(self, row: ViewRow) -> bytes:
        """The mail's bytes, as enqueued. Raises ContentMissing when a blob is gone."""
        return b"".join(self.pieces(row))

    def pieces(self, row: ViewRow) -> Iterator[bytes]:
        """As `content`, a mebibyte at a time."""
        yield from self._stores.blobs.pieces(row.item.header_blob_id)
        yield from self._stores.blobs.pieces(row.item.body_blob_id)

    @property
    def shape(self) -> Shape:
        """Windows and buckets of the view, by its stored history."""
        return self._live.shape

    @cached_property
    def _live(self) -> LiveRows:
        tables = self._stores.tables
        tables.refresh()  # names a keyspace or tables that are missing
        return LiveRows(tables, self.name, view_shape(self._stores))

    @cached_property
    def _remembered_live(self) -> LiveRows:
        """Skips dead rows that a cleanup had to leave beside a survivor. Only for reads that
        change nothing: code that changes something uses `_live`, which reads every row.
        """
        survivors = trusted_survivors(
            self._stores.remembered_slices(self.name), self._live.shape.largest_window
        )
        return replace(self._live, survivors=survivors)

    def _position(self, enqueue_id: EnqueueId) -> Position:
        """The mail's position in the order of a browse. The mail may be done by now."""
        live, now = self._live, self._clock()
        for table in self._stores.tables.existing:
            # Also before browseStart: the mails of the last page may be done by now.
            for partitions in (live.partitions(now), table.partitions(self.name)):
                keys = ((partition, [enqueue_id]) for partition in partitions)
                for partition, page in table.existing_ids(self.name, keys):
                    for row in page:
                        start = partition.slice_start
                        return start, row.enqueued_time or start, enqueue_id
        raise BadInput(
            f"{self.name} has no row of mail {enqueue_id} any more: browse from the beginning, or "
            "after another mail"
        )

    def _matching(
        self,
        live: LiveRows,
        mail_filter: MailFilter,
        at_a_time: int,
        after: Position | None = None,
        deadline: BrowseDeadline | None = None,
    ) -> Iterator[ViewRow]:
        """Reads only the buckets that the filter's name had under any configuration so far. Where
        the filter names few ids, reads only these ids of each slice.
        """
        now, ids, name = self._clock(), mail_filter.ids, mail_filter.name
        buckets = (
            {bucket_of(name, count) for count in live.shape.bucket_counts}
            if isinstance(name, str)
            else None
        )
        if ids is not None and len(ids) <= _FEW_IDS:
            ordered = sorted(ids)
            live = replace(
                live, survivors={key.slice_start: ordered for key in live.partitions(now, buckets)}
            )
        candidates = live.ids(now, buckets, mail_filter.latest(now), after, deadline)
        if ids is not None:
            candidates = (candidate for candidate in candidates if candidate[0] in ids)
        rows = live.rows(candidates, at_a_time)
        return (
            rows if mail_filter.is_empty else (row for row in rows if mail_filter.matches(row, now))
        )

    def _keeps(self, deletion: Deletion) -> bool:
        return deletion.undo and bool(self._stores.settings.admin.undo_for)

    def _delete(self, rows: Iterator[ViewRow], deletion: Deletion) -> int:
        if not self._keeps(deletion):
            return self._mark((row.enqueue_id for row in rows), deletion)
        delete_and_keep(self._stores, self.name, self._clock, rows, deletion)
        return deletion.mails

    def _mark(self, ids: Iterator[EnqueueId], deletion: Deletion) -> int:
        for batch in batches(ids, 1000):  # so that an error leaves the count of what was marked
            deletion.mails += self._stores.tables.deleted.mark_many(self.name, mark_points(batch))
        crash.point("delete:marked")
        return deletion.mails
