"""What benchmarks and tests do to tables, and no product does."""

from collections.abc import Iterable

from mailslice.model.batches import batches
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores.cassandra.deleted_mails import DeletedMails
from mailslice.stores.cassandra.ids import IDS_A_REQUEST, pack, unpack
from mailslice.stores.cassandra.ranges import HIGHEST, LOWEST, split

_RANGES = 32


def drop_marks(marks: DeletedMails, queue: QueueName, ids: Iterable[EnqueueId]) -> None:
    """Deletes the marks of these mails, whatever else knows of them."""
    marks.drop_packed(queue, map(pack, batches(ids, IDS_A_REQUEST)))


def marked_ids(marks: DeletedMails, queue: QueueName) -> set[EnqueueId]:
    """Every marked id of the queue: a scan of the whole table."""
    pages = marks.packed_ids_of(queue, split(LOWEST, HIGHEST, _RANGES))
    return {one for page in pages for one in unpack(page)}
