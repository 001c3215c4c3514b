"""Reads `messages`, `deliveries` and raw tables of one mail server by lists of ids.

Raises for a missing database, table or right. Only a raw table may be missing: Postal's retention
drops it, and the content of its messages is lost.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from mailslice.model.batches import batches, batches_by_key
from mailslice.stores.mariadb.client import MariaDb, quoted
from mailslice.stores.mariadb.failures import NoSuchObject
from mailslice.stores.postal.rows import PAGE

OWN_LOG_ID = "mailslice-"
"""Prefix of the log ids of mailslice's delivery records. Postal's log ids are random."""
_HEADER = "x-postal-msgid"
_HAS_HEADER = " OR ".join(
    "LOCATE(CONCAT(CHAR(10), %s), CONCAT(CHAR(10), LOWER(CONVERT(data USING latin1))) "
    "COLLATE latin1_bin) > 0"
    for _ in range(3)
)
"""Whether a header block has Postal's own header, in any case and encoding (latin1). A blank before
the colon counts, too: in doubt the header is there.
"""
_LINES = tuple(f"{_HEADER}{end}" for end in (":", " ", "\t"))


@dataclass(frozen=True, slots=True)
class PostalMessage:
    """A row of `messages`. `raw_table` is None after Postal's retention dropped the content."""

    id: int
    scope: str | None
    rcpt_to: str | None
    mail_from: str | None
    inspected: int | None
    raw_table: str | None
    raw_headers_id: int | None
    raw_body_id: int | None


@dataclass(frozen=True, slots=True)
class PostalDelivery:
    """A row of `deliveries`. `timestamp`: seconds since the epoch, by the writer's clock."""

    id: int
    status: str | None
    timestamp: Decimal | None
    log_id: str | None

    @property
    def is_own(self) -> bool:
        """Whether mailslice wrote it. Then its time is by the database's clock, not a worker's."""
        return (self.log_id or "").startswith(OWN_LOG_ID)


class ServerMessages:
    """The message database of one mail server."""

    def __init__(self, db: MariaDb, database: str) -> None:
        self._db, self.database = db, database

    def exists(self) -> bool:
        """Whether the table `messages` exists."""
        try:
            return not self._db.rows(f"SELECT id FROM {self._table('messages')} LIMIT 0")
        except NoSuchObject:
            return False

    def deleted_ids(self, ids: Collection[int]) -> set[int]:
        """Those of `ids` whose messages were deleted. Raises NoSuchObject if one is beyond the
        newest message: an old backup, one that is being restored (AUTO_INCREMENT comes before the
        rows), or another server's database proves nothing.
        """
        gone = set(ids) - {row[0] for row in self._by_list("id", "messages", "id", ids)}
        rows = self._db.rows(f"SELECT MAX(id) FROM {self._table('messages')}") if gone else []
        newest = max((number or 0 for (number,) in rows), default=0)
        if gone and max(gone) > newest:
            raise NoSuchObject(
                f"message {max(gone)} of Postal's queue is none yet in {self.database}, whose "
                f"newest one is {newest}: it is being restored, is old, or is another server's"
            )
        return gone

    def by_id(self, ids: Iterable[int]) -> dict[int, PostalMessage]:
        """Rows of `messages`; ids without one are absent."""
        columns = ", ".join(field.name for field in fields(PostalMessage))
        rows = self._by_list(columns, "messages", "id", ids)
        return {row[0]: PostalMessage(*row) for row in rows}

    def deliveries(self, ids: Iterable[int]) -> dict[int, list[PostalDelivery]]:
        """Delivery records by message, the oldest first. Messages without one are absent."""
        records: defaultdict[int, list[PostalDelivery]] = defaultdict(list)
        columns = "message_id, id, status, timestamp, log_id"
        for message, *values in self._by_list(columns, "deliveries", "message_id", ids):
            records[message].append(PostalDelivery(*values))
        for of_message in records.values():
            of_message.sort(key=lambda record: record.id)
        return dict(records)

    def has_own_header(self, rows: Iterable[PostalMessage]) -> dict[int, bool]:
        """Message -> whether its raw headers have X-Postal-MsgID; absent if the content is gone."""
        existing = (row for row in rows if row.raw_headers_id is not None)
        by_table = ((row.raw_table, row) for row in existing if row.raw_table is not None)
        answers: dict[int, bool] = {}
        for table, page in batches_by_key(by_table, PAGE):
            answers.update(self._headers_of(table, page))
        return answers

    def content(self, row: PostalMessage) -> bytes | None:
        """The message as Postal's Download gives it; None if it is gone in part or whole."""
        if row.raw_table is None or row.raw_headers_id is None:
            return None
        ids = [raw_id for raw_id in (row.raw_headers_id, row.raw_body_id) if raw_id is not None]
        parts = {raw_id: data or b"" for raw_id, data in self._raw("id, data", row.raw_table, ids)}
        if set(ids) - parts.keys():
            return None
        body = b"" if row.raw_body_id is None else parts[row.raw_body_id]
        return bytes(parts[row.raw_headers_id] + b"\r\n\r\n" + body)

    def sending_times(self, newest: int) -> Counter[Decimal]:
        """Seconds of a sending -> how many, among the `newest` delivery records; some have none."""
        times: Counter[Decimal] = Counter()
        table, last, remaining = self._table("deliveries"), 2**63 - 1, newest
        sql = f"SELECT id, time FROM {table} WHERE id < %s ORDER BY id DESC LIMIT %s"
        while remaining > 0:
            page = self._db.rows(sql, (last, min(PAGE, remaining)))
            times.update(time for _, time in page if time is not None)
            if len(page) < min(PAGE, remaining):
                break
            last, remaining = page[-1][0], remaining - len(page)
        return times

    def _headers_of(self, table: str, rows: Collection[PostalMessage]) -> dict[int, bool]:
        ids = [row.raw_headers_id for row in rows if row.raw_headers_id is not None]
        headers = dict(self._raw(f"id, {_HAS_HEADER}", table, ids, _LINES))
        bodies = [row.raw_body_id for row in rows if row.raw_body_id is not None]
        present = {body for (body,) in self._raw("id", table, bodies)}
        return {
            row.id: headers[row.raw_headers_id] != 0  # NULL is unknown: the header may be there
            for row in rows
            if row.raw_headers_id in headers
            and (row.raw_body_id is None or row.raw_body_id in present)
        }

    def _raw(
        self, columns: str, table: str, ids: Collection[int], params: tuple[Any, ...] = ()
    ) -> list[tuple[Any, ...]]:
        """Rows of a raw table; empty if the table itself is gone."""
        try:
            return self._by_list(columns, table, "id", ids, params)
        except NoSuchObject:
            if not self.exists():  # the whole database is gone
                raise
            return []

    def _by_list(
        self, columns: str, table: str, key: str, ids: Iterable[int], params: tuple[Any, ...] = ()
    ) -> list[tuple[Any, ...]]:
        # With stale statistics MariaDB would scan a whole raw table with its contents.
        by = "FORCE INDEX (PRIMARY)" if key == "id" else ""
        sql = f"SELECT {columns} FROM {self._table(table)} {by} WHERE {key} IN %s"
        pages = batches(dict.fromkeys(ids), PAGE)
        return [row for page in pages for row in self._db.rows(sql, (*params, page))]

    def _table(self, name: str) -> str:
        return quoted(self.database, name)
