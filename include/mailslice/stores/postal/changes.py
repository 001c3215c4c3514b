"""Changes to Postal's databases: one short transaction a message.

The conditional change of the queue row comes first and locks that one row for a few milliseconds:
while the row is locked, the next poll of every Postal worker waits. A caller that cannot lock the
row in a few tries gets Contended, and nothing was changed.
"""

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Self

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from mailslice.model import crash
from mailslice.model.errors import MailsliceError, StoreUnavailable, TryAgain
from mailslice.stores.mariadb.client import MariaDbTransaction, quoted
from mailslice.stores.mariadb.failures import AlreadyThere, Contended, NoRight, NoSuchObject
from mailslice.stores.postal.databases import PostalDatabases
from mailslice.stores.postal.rows import NO_TIME, QueuedMessage
from mailslice.stores.postal.schema import COUNTERS, STATISTICS

TRIES = 4
LONGEST_TEXT = 250
"""Characters of `details`. Postal cuts there, too."""
_NOW = "SELECT UNIX_TIMESTAMP(UTC_TIMESTAMP(6))"
"""The main database's clock: it dates queue rows, with which a record's time is compared."""
REMOVED = "Raw message has been removed. Cannot send message."
"""Postal's own text for a message without content."""
_AS_READ = " WHERE id = %s AND server_id = %s AND message_id = %s AND locked_by <=> %s AND "
_LOCKED_AT = "locked_at <=> %s"
_LOCKED_WITHOUT_TIME = (
    "COALESCE(locked_by, locked_at) IS NOT NULL "
    "AND COALESCE(MONTH(locked_at) * DAYOFMONTH(locked_at), 0) = 0"
)
# 300 s * 1.3 ** 40 is 125 days. A count of attempts set by hand must not overflow a date.
_LATER = (
    "locked_by = NULL, locked_at = NULL, "
    "retry_after = UTC_TIMESTAMP() + INTERVAL "
    "ROUND(300 * POW(1.3, LEAST(COALESCE(attempts, 0), 40))) SECOND, "
    "attempts = COALESCE(attempts, 0) + 1"
)
"""As Postal's retry_later. Uses the old attempts: an UPDATE assigns from left to right."""


class RowChanged(MailsliceError):
    """The queue row was unlocked, locked again or deleted since the read. Nothing was changed."""


class MessageChanged(MailsliceError):
    """Since it was read, the message got a delivery record or was deleted. Nothing was changed."""


class RecordRefused(MailsliceError):
    """The record cannot be written (a right, a table, or the server is away). Nothing changed."""


class RecordMissing(TryAgain):
    """The row's change is committed, but the other MariaDB did not confirm its record."""


@dataclass(frozen=True, slots=True)
class PostalRecord:
    """A delivery record of mailslice. `counter`: the statistics column that counts it."""

    status: str
    details: str
    log_id: str
    counter: str | None = None

    @classmethod
    def held(cls, details: str, log_id: str) -> Self:
        """Held: a person decides, on Postal's page or on mailslice's."""
        return cls("Held", details, log_id, "held")

    @classmethod
    def removed(cls, log_id: str) -> Self:
        """The content is gone."""
        return cls("HardFail", REMOVED, log_id, "bounces")

    @classmethod
    def hold_cancelled(cls, details: str, log_id: str) -> Self:
        """A person decided not to send it."""
        return cls("HoldCancelled", details, log_id)

    @classmethod
    def error(cls, details: str, log_id: str) -> Self:
        """A lock was released; Postal tries the message again."""
        return cls("Error", details, log_id)


# A wait for the queue row takes up to 3 s. Pauses keep two mailslices from colliding again.
_repeated = retry(
    retry=retry_if_exception_type(Contended),
    stop=stop_after_attempt(TRIES),
    wait=wait_random(0.05, 0.3),
    reraise=True,
)


class PostalChanges:
    """The writing transactions. `newest` is the id of the newest delivery record that was read:
    with a later one, a change raises MessageChanged.
    """

    def __init__(self, postal: PostalDatabases) -> None:
        self._postal = postal
        self._queue = quoted(postal.main.url.database, "queued_messages")
        self._delete = f"DELETE FROM {self._queue}"
        self._unlock = f"UPDATE {self._queue} SET {_LATER}"

    def close(self, row: QueuedMessage, record: PostalRecord, newest: int) -> None:
        """Deletes the queue row, writes the record. On two servers the deletion commits first."""
        self._change_row_and_record(self._delete, row, record, newest, row_first=True)

    def fail(self, row: QueuedMessage, record: PostalRecord, newest: int) -> None:
        """As `close`, for a message without content. On two servers the record commits first."""
        self._change_row_and_record(self._delete, row, record, newest, row_first=False)

    def retry(self, row: QueuedMessage, record: PostalRecord | None, newest: int) -> None:
        """Releases the lock as Postal's retry_later. On two servers the record commits first."""
        self._change_row_and_record(self._unlock, row, record, newest, row_first=False)

    @_repeated
    def remove(self, row: QueuedMessage) -> None:
        """Deletes the row of a message that is done or gone."""
        with self._postal.main.transaction() as transaction:
            self._take(transaction, self._delete, row)
            crash.point("postal:taken")
            crash.point("postal:recorded")
        crash.point("postal:committed")

    @_repeated
    def record(self, server: int, message: int, record: PostalRecord) -> None:
        """Writes only the record, of a row changed before. MessageChanged: the message is gone."""
        same = f"FROM {self._table(server, 'deliveries')} WHERE message_id = %s AND log_id = %s"
        ((now,),) = self._postal.main.rows(_NOW)
        with suppress(AlreadyThere), self._postal.messages.transaction() as transaction:
            self._write(transaction, server, message, record, now)
            # The write waited for the message's lock: a commit on its way has written the record.
            if len(transaction.rows(f"SELECT id {same}", (message, record.log_id))) > 1:
                raise AlreadyThere

    def is_there(self, row: QueuedMessage) -> bool:
        """Whether the row is as it was read. Waits for a transaction that may still commit."""
        where, values = _as_read(row)
        with self._postal.main.transaction() as transaction:
            return bool(transaction.rows(f"SELECT id FROM {self._queue}{where} FOR UPDATE", values))

    @_repeated
    def requeue(self, row: QueuedMessage) -> int | None:
        """Reinserts the row, unlocked and due; returns its new id. None: the message has a row."""
        main = self._postal.main.url.database
        with self._postal.main.transaction() as transaction:
            known = f"SELECT id FROM {quoted(main, 'ip_addresses')} WHERE id = %s"
            address = row.ip_address
            if address is not None and not transaction.rows(known, (address,)):
                address = None
            inserted = transaction.execute(
                f"INSERT INTO {self._queue} (server_id, message_id, domain, ip_address_id, "
                "attempts, route_id, manual, batch_key, created_at, updated_at) "
                "SELECT %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) "
                f"FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {self._queue} "
                "WHERE message_id = %s AND server_id = %s)",
                (
                    *(row.server, row.message, row.domain, address, row.attempts),
                    *(row.route, row.manual, row.batch_key, row.message, row.server),
                ),
            )
            if not inserted:
                return None
            ((number,),) = transaction.rows("SELECT LAST_INSERT_ID()")
        return int(number)

    @_repeated
    def cancel_hold(self, server: int, message: int, record: PostalRecord, newest: int) -> bool:
        """Ends a hold as Postal's Cancel does. False: not held, or there is a newer record."""
        row = f"{self._table(server, 'messages')} WHERE id = %s AND status = 'Held' AND held = 1"
        later = f"{self._table(server, 'deliveries')} WHERE message_id = %s AND id > %s LIMIT 1"
        ((now,),) = self._postal.main.rows(_NOW)
        with self._postal.messages.transaction() as transaction:
            is_held = transaction.rows(f"SELECT id FROM {row}", (message,))
            if not is_held or transaction.rows(f"SELECT id FROM {later}", (message, newest)):
                return False
            self._write(transaction, server, message, record, now)
        return True

    @_repeated
    def _change_row_and_record(
        self,
        take: str,
        row: QueuedMessage,
        record: PostalRecord | None,
        newest: int,
        *,
        row_first: bool,
    ) -> None:
        """Changes row and record in one transaction, or two: the one opened last commits first."""
        main, messages = self._postal.main, self._postal.messages
        same_server, is_first_committed = self._postal.same_server, False

        def first_ended(*error: object) -> None:
            nonlocal is_first_committed
            is_first_committed = error[0] is None

        try:
            with ExitStack() as stack:
                if same_server:
                    row_tx = record_tx = stack.enter_context(main.transaction())
                elif row_first:
                    record_tx = stack.enter_context(messages.transaction())
                    stack.push(first_ended)
                    row_tx = stack.enter_context(main.transaction())
                else:
                    row_tx = stack.enter_context(main.transaction())
                    record_tx = stack.enter_context(messages.transaction())
                self._take(row_tx, take, row)
                ((now,),) = row_tx.rows(_NOW)
                record_tx.stop_waiting()
                crash.point("postal:taken")
                try:
                    self._require_no_news(record_tx, row, newest)
                    if record is not None:
                        self._write(record_tx, row.server, row.message, record, now)
                except (NoRight, NoSuchObject, StoreUnavailable) as error:
                    if same_server and isinstance(error, StoreUnavailable):
                        raise
                    raise RecordRefused(str(error)) from error
                crash.point("postal:recorded")
        except MailsliceError as error:
            if is_first_committed:
                raise RecordMissing(str(error)) from error
            raise
        crash.point("postal:committed")

    def _take(self, transaction: MariaDbTransaction, change: str, row: QueuedMessage) -> None:
        where, values = _as_read(row)
        if not transaction.execute(change + where, values):
            raise RowChanged(f"row {row.id} of Postal's queue is not as it was read")

    def _require_no_news(
        self, transaction: MariaDbTransaction, row: QueuedMessage, newest: int
    ) -> None:
        table = self._table(row.server, "deliveries")
        sql = f"SELECT id FROM {table} WHERE message_id = %s AND id > %s LIMIT 1"
        if transaction.rows(sql, (row.message, newest)):
            raise MessageChanged(
                f"message {row.message} of server {row.server} has a new delivery record"
            )

    def _write(
        self, tx: MariaDbTransaction, server: int, message: int, record: PostalRecord, now: Decimal
    ) -> None:
        tx.execute(
            f"INSERT INTO {self._table(server, 'deliveries')} "
            "(message_id, status, details, log_id, timestamp) VALUES (%s, %s, %s, %s, %s)",
            (message, record.status, record.details[:LONGEST_TEXT], record.log_id, now),
        )
        updated = tx.execute(
            f"UPDATE {self._table(server, 'messages')} SET status = %s, held = %s, "
            "hold_expiry = NULL, last_delivery_attempt = %s WHERE id = %s",
            (record.status, int(record.status == "Held"), now, message),
        )
        if not updated:
            raise MessageChanged(f"message {message} of server {server} is gone")
        if (counter := record.counter) is None:
            return
        values = ", ".join("1" if name == counter else "0" for name in COUNTERS)
        more = f"ON DUPLICATE KEY UPDATE {counter} = COALESCE({counter}, 0) + 1"
        for name, start in _periods(now):
            table = f"{self._table(server, name)} (time, {', '.join(COUNTERS)})"
            tx.execute(f"INSERT INTO {table} VALUES (%s, {values}) {more}", (start,))

    def _table(self, server: int, name: str) -> str:
        return quoted(self._postal.database_of(server), name)


def _as_read(row: QueuedMessage) -> tuple[str, tuple[object, ...]]:
    """A condition that holds while the row is as it was read, and its values."""
    values = row.id, row.server, row.message, row.locked_by
    if row.locked_at == NO_TIME:
        return _AS_READ + _LOCKED_WITHOUT_TIME, values
    return _AS_READ + _LOCKED_AT, (*values, row.locked_at)


def _periods(timestamp: Decimal) -> list[tuple[str, int]]:
    """Statistics table -> begin (UTC) of its period around the timestamp, in epoch seconds."""
    hour = datetime.fromtimestamp(int(timestamp), UTC).replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    starts = hour, day, day.replace(day=1), day.replace(month=1, day=1)
    return list(zip(STATISTICS, (int(start.timestamp()) for start in starts), strict=True))
