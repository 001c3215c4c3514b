"""When delayed mails are due: read beside the rows of the view, a hundred at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from mailslice.cli import shapes

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName, ViewRow
    from mailslice.stores import Stores

_AT_ONCE = 100


def with_next_delivery(
    stores: Stores, queue: QueueName, rows: Iterable[ViewRow]
) -> Iterator[dict[str, object]]:
    """The rows as JSON objects, with `nextDelivery`. A deployment without mailslice's own tables has no delayed mail: nothing is created to find that out."""
    from mailslice.stores.cassandra.own import DelayedMails

    delayed, stream = DelayedMails.existing(stores.cassandra, stores.settings), iter(rows)
    if delayed is None:
        yield from (shapes.view_row(row) for row in stream)
        return
    while chunk := list(islice(stream, _AT_ONCE)):
        futures = [delayed.read_future(queue, row.enqueue_id) for row in chunk]
        for row, future in zip(chunk, futures, strict=True):
            try:
                found = list(future.result())
            except Exception as error:
                raise stores.cassandra.error(error) from error
            mail = delayed.row(found[0]) if found else None
            yield shapes.view_row(
                row, mail.due if mail is not None and not mail.published else None
            )
