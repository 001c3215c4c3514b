"""One thread of a worker: issues Postal's statements in their order, on Postal's connections."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pymysql
from pymysql.constants import ER

from mailslice.testing.postal.databases import FreshPostal, Row, SqlSession
from mailslice.testing.postal.mails import OUTGOING, OWN_HEADER, job_name, with_own_headers
from mailslice.testing.postal.records import Hook, Outcome, PlayerRecords, Step
from mailslice.testing.postal.schema import Version
from mailslice.testing.postal.statements import count, destroy, utc_now

_MAX_ATTEMPTS = 18
_FRIENDS = 100
_LOCK_ERRORS = (ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The setup that the threads of one player share. Postal 2.x always has batches."""

    postal: FreshPostal
    hook: Hook
    outcome: Outcome
    batches: bool
    ip_addresses: tuple[int, ...]
    """Ids of the IP addresses of this host."""
    records: PlayerRecords


class Worker:
    """One thread with its two connections: for the main database and for message databases."""

    def __init__(self, setup: WorkerSetup, name: str) -> None:
        self._setup = setup
        self._name = name
        self._two = setup.postal.version is Version.V2_3
        self._batches = setup.batches or self._two
        self._connect()

    def _connect(self) -> None:
        postal = self._setup.postal
        self._main = SqlSession(postal.login.connect(postal.name))
        self._messages = SqlSession(postal.message_login.connect())

    def close(self) -> None:
        for session in (self._main, self._messages):
            with suppress(pymysql.Error):
                session.close()

    def reconnect(self) -> None:
        """Opens both connections again, as after one was lost."""
        self.close()
        with suppress(pymysql.Error):
            self._connect()

    def poll(self) -> bool:
        """Polls once and does the work that it finds. Returns False if there was none."""
        leaders = self._locked_by_id() if self._two else self._locked_first()
        for leader in leaders:
            self._setup.hook(Step.LOCKED, leader)
            self._work(leader)
        return bool(leaders)

    # Locks.

    def _locked_first(self) -> list[Row]:
        now, holder = utc_now(), f"{self._name} {secrets.token_hex(8)}"
        addresses = "ip_address_id IS NULL"
        if self._setup.ip_addresses:
            marks = ", ".join(map(str, self._setup.ip_addresses))
            addresses = f"(ip_address_id IN ({marks}) OR ip_address_id IS NULL)"
        with self._timed("lock"):
            self._main.run(
                f"UPDATE queued_messages SET locked_by = %s, locked_at = %s WHERE {addresses} "
                "AND locked_by IS NULL AND locked_at IS NULL "
                "AND (retry_after IS NULL OR retry_after < %s) LIMIT 1",
                *(holder, now, now - timedelta(seconds=30)),
            )
        return self._read_locked("", holder, now)

    def _locked_by_id(self) -> list[Row]:
        """2.3 has a job for each row. The requeuer reads all due rows; each job locks its own."""
        due = self._main.rows(
            "SELECT id FROM queued_messages WHERE locked_at IS NULL "
            "AND (retry_after IS NULL OR retry_after < %s)",
            utc_now() - timedelta(seconds=30),
        )
        for each in due:
            now, holder = utc_now(), job_name()
            with self._timed("lock"):
                taken = self._main.run(
                    "UPDATE queued_messages SET locked_by = %s, locked_at = %s "
                    "WHERE id = %s AND locked_by IS NULL AND locked_at IS NULL",
                    *(holder, now, each["id"]),
                )
            if taken:
                return self._read_locked(" AND id = %s", holder, now, each["id"])
        return []

    def _read_locked(self, more: str, holder: str, at: datetime, *values: object) -> list[Row]:
        return self._main.rows(
            f"SELECT * FROM queued_messages WHERE locked_by = %s AND locked_at = %s{more}",
            *(holder, at, *values),
        )

    def _friends(self, leader: Row) -> list[Row]:
        if not self._batches or leader["batch_key"] is None:
            return []
        now = utc_now()
        holder = leader["locked_by"] if self._two else self._name
        same = leader["batch_key"], leader["ip_address_id"]
        with self._timed("lock"):
            self._main.run(
                "UPDATE queued_messages SET locked_by = %s, locked_at = %s "
                "WHERE (retry_after IS NULL OR retry_after < %s) AND batch_key = %s "
                "AND ip_address_id <=> %s AND locked_by IS NULL AND locked_at IS NULL "
                f"LIMIT {_FRIENDS}",
                *(holder, now, now, *same),
            )
        more = " AND batch_key = %s AND ip_address_id <=> %s AND id <> %s"
        return self._read_locked(more, holder, now, *same, leader["id"])

    # Work.

    def _work(self, leader: Row) -> None:
        if self._message(leader) is None:
            self._destroy(leader)
            return
        if leader["retry_after"] is not None and leader["retry_after"] >= utc_now():
            self._unlock(leader)
            return
        try:
            friends = self._friends(leader)
        except pymysql.Error:
            self._unlock(leader)
            raise
        self._setup.hook(Step.BATCHED, leader)
        for row in (leader, *friends):
            self._one(row)

    def _one(self, row: Row) -> None:
        try:
            self._process(row)
        except (pymysql.Error, LookupError, OSError, ValueError) as error:
            self._setup.records.note_error(repr(error))
            self._retry_later(row)
            self._record(row, "Error", details="An internal error; it is tried again.", time=None)

    def _process(self, row: Row) -> None:
        self._setup.hook(Step.STARTED, row)
        message = self._message(row)
        if message is None:
            self._destroy(row)
            return
        if row["attempts"] >= _MAX_ATTEMPTS:
            self._end_with(row, "HardFail", "Tried too often.")
            return
        raw = self._headers(row, message)
        if not raw:
            self._end_with(row, "HardFail", "Raw message has been removed. Cannot send message.")
            return
        database = self._database(row)
        if message["scope"] == OUTGOING:
            suppressed = self._messages.rows(
                f"SELECT * FROM {database}.suppressions WHERE type = 'recipient' AND address = %s",
                message["rcpt_to"],
            )
            if suppressed and not row["manual"]:
                self._end_with(row, "Held", "The recipient is on the suppression list.")
                return
            self._messages.run(
                f"UPDATE {database}.messages SET parsed = 1 WHERE id = %s", row["message_id"]
            )
            self._write_headers(row, message, raw)
            self._main.run(
                "UPDATE servers SET send_limit_approaching_at = NULL, "
                "send_limit_exceeded_at = NULL WHERE id = %s",
                row["server_id"],
            )
            self._count_live(row, message)
        else:
            self._count_live(row, message)
            self._messages.run(
                f"UPDATE {database}.messages SET inspected = 1 WHERE id = %s", row["message_id"]
            )
            self._setup.hook(Step.INSPECTED, row)
        if self._server(row)["mode"] == "Development" and not row["manual"]:
            self._end_with(row, "Held", "The server is in development mode.")
            return
        self._send(row)

    def _send(self, row: Row) -> None:
        self._setup.hook(Step.SENDING, row)
        began = time.monotonic()
        result = self._setup.outcome(row)
        if result == "Sent":
            self._setup.records.note_sent(row)
        self._setup.hook(Step.SENT, row)
        self._record(row, result, details=f"{result}.", time=time.monotonic() - began)
        self._setup.hook(Step.RECORDED, row)
        if result == "SoftFail":
            self._retry_later(row)
        else:
            self._destroy(row)
        self._setup.hook(Step.FINISHED, row)

    def _end_with(self, row: Row, status: str, details: str) -> None:
        self._record(row, status, details=details, time=None)
        self._destroy(row)

    def _write_headers(self, row: Row, message: Row, raw: bytes) -> None:
        marked = any(
            line.lower().startswith(f"{OWN_HEADER}:".lower().encode()) for line in raw.splitlines()
        )
        if not marked:
            table = f"{self._database(row)}.`{message['raw_table']}`"
            self._messages.run(
                f"UPDATE {table} SET data = %s WHERE id = %s",
                *(with_own_headers(raw, message["token"]), message["raw_headers_id"]),
            )
        self._setup.hook(Step.HEADERS, row)

    def _record(self, row: Row, status: str, *, details: str, time: float | None) -> None:
        database, at = self._database(row), utc_now()
        stamp = at.replace(tzinfo=UTC).timestamp()
        with self._timed("record"):
            self._messages.insert(
                f"{database}.deliveries",
                message_id=row["message_id"],
                status=status,
                details=details[:250],
                output="",
                sent_with_ssl=0,
                log_id=secrets.token_hex(4),
                timestamp=stamp,
                time=time,
            )
        self._setup.hook(Step.DELIVERED, row)
        counter = {"Held": "held", "HardFail": "bounces", "Bounced": "bounces"}.get(status)
        if counter:
            with self._timed("statistics"):
                count(self._messages, database, counter, at)
        expiry = stamp + timedelta(days=7).total_seconds() if status == "Held" else None
        with self._timed("message"):
            self._messages.run(
                f"UPDATE {database}.messages SET status = %s, last_delivery_attempt = %s, "
                "held = %s, hold_expiry = %s WHERE id = %s",
                *(status, stamp, int(status == "Held"), expiry, row["message_id"]),
            )

    # Ends of the queue row.

    def _destroy(self, row: Row) -> None:
        with self._timed("delete"):
            destroy(self._main, row["id"])

    def _unlock(self, row: Row) -> None:
        with self._timed("unlock"):
            self._main.run(
                "UPDATE queued_messages SET locked_by = NULL, locked_at = NULL WHERE id = %s",
                row["id"],
            )

    def _retry_later(self, row: Row) -> None:
        wait = timedelta(minutes=5) * 1.3 ** row["attempts"]
        with self._timed("retry"):
            self._main.run(
                "UPDATE queued_messages SET locked_by = NULL, locked_at = NULL, retry_after = %s, "
                "attempts = %s WHERE id = %s",
                *((utc_now() + wait).replace(microsecond=0), row["attempts"] + 1, row["id"]),
            )

    # Reads.

    def _server(self, row: Row) -> Row:
        servers = self._main.rows("SELECT * FROM servers WHERE id = %s LIMIT 1", row["server_id"])
        if not servers:
            raise LookupError(f"server {row['server_id']} is gone")
        return servers[0]

    def _database(self, row: Row) -> str:
        return f"`{self._setup.postal.prefix}-server-{row['server_id']}`"

    def _message(self, row: Row) -> Row | None:
        self._server(row)
        rows = self._messages.rows(
            f"SELECT * FROM {self._database(row)}.messages WHERE id = %s LIMIT 1",
            row["message_id"],
        )
        return rows[0] if rows else None

    def _headers(self, row: Row, message: Row) -> bytes:
        if message["raw_table"] is None:
            return b""
        data = self._messages.one(
            f"SELECT data FROM {self._database(row)}.`{message['raw_table']}` WHERE id = %s",
            message["raw_headers_id"],
        )
        return data or b""

    def _count_live(self, row: Row, message: Row) -> None:
        now = utc_now()
        stamp = now.replace(tzinfo=UTC).timestamp()
        self._messages.run(
            f"INSERT INTO {self._database(row)}.live_stats (type, minute, timestamp, count) "
            "VALUES (%s, %s, %s, 1) ON DUPLICATE KEY UPDATE "
            "count = IF(timestamp < %s, 1, count + 1), timestamp = %s",
            *(message["scope"], now.minute, stamp, stamp - 1800, stamp),
        )

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except pymysql.err.OperationalError as error:
            if error.args[0] in _LOCK_ERRORS:
                self._setup.records.note_lock_error(f"{kind}: {error.args[0]}")
            raise
        finally:
            self._setup.records.note_time(kind, time.monotonic() - began)
