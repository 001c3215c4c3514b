"""A player of Postal's workers: threads that issue the statements of 3.3.6, or 2.3's lock by id.

What a worker does between two statements is a hook of the test: it may pause, hang or die there.
The player records what was sent, how long its statements took, and each lock error it got.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pymysql
from pymysql.constants import ER

from mailslice.testing.postal.databases import FreshPostal, Row, SqlSession
from mailslice.testing.postal.mails import OUTGOING, OWN_HEADER, job_name, with_own_headers
from mailslice.testing.postal.schema import Version

STATISTICS = ("hourly", "daily", "monthly", "yearly")
_COUNTERS = ("incoming", "outgoing", "spam", "bounces", "held")
_MOST_ATTEMPTS = 18
_FRIENDS = 100
_LOCK_ERRORS = (ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK)
_TIDY_PAGE = 1000


class Step(StrEnum):
    """Points between a worker's statements, in their order."""

    LOCKED = "row locked"
    BATCHED = "friends locked"
    STARTED = "one mail begins"
    INSPECTED = "spam check written"
    HEADERS = "own headers written"
    SENDING = "before the sending"
    SENT = "sent, no record"
    DELIVERED = "delivery row written"
    RECORDED = "messages written"
    FINISHED = "queue row gone or unlocked"


class Died(BaseException):
    """Raised by a hook: the thread ends there, and its locks stay."""


Hook = Callable[[Step, Row], None]
Outcome = Callable[[Row], str]
"""Of a queue row: Sent, SoftFail, HardFail, or an exception that Postal would rescue."""


@dataclass(slots=True)
class Records:
    """What all threads of a player did. Ids are (server, message)."""

    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    sent_at: dict[tuple[int, int], float] = field(default_factory=dict)
    """time.monotonic of the last sending."""
    longest: dict[str, float] = field(default_factory=dict)
    """Seconds of the slowest statement of each kind."""
    lock_errors: list[str] = field(default_factory=list)
    """Each 1205 and 1213, with the kind of its statement."""
    errors: list[str] = field(default_factory=list)
    """What a worker would log: errors that no thread expects."""
    deaths: int = 0

    @property
    def longest_wait(self) -> float:
        """Seconds of the slowest statement that may wait for a row lock."""
        return max((seconds for kind, seconds in self.longest.items() if kind != "read"), default=0)


class Player:
    """Threads of one worker host. `with player:` runs them until its end."""

    def __init__(
        self,
        postal: FreshPostal,
        *,
        threads: int = 2,
        hook: Hook = lambda _step, _row: None,
        outcome: Outcome = lambda _row: "Sent",
        idle: float = 0.1,
        batches: bool = True,
        host: str = "worker-1",
        ip_addresses: tuple[int, ...] = (),
    ) -> None:
        self.records = Records()
        self._postal = postal
        self._hook = hook
        self._outcome = outcome
        self._idle = idle
        self._batches = batches or postal.version is Version.V2_3
        self._host = host
        self._ip_addresses = ip_addresses
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(1, threads + 1)
        ]

    def __enter__(self) -> Player:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, seconds: float = 30) -> None:
        """TERM: threads finish what they have, then end. Threads that hang are left alone."""
        self._ending.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def wait_until_idle(self, seconds: float = 30) -> None:
        """Returns once no row that is due waits unlocked. Raises AssertionError after `seconds`."""
        session = SqlSession(self._postal.login.connect(self._postal.name))
        waiting = (
            "SELECT COUNT(*) FROM queued_messages WHERE locked_at IS NULL "
            "AND (retry_after IS NULL OR retry_after < UTC_TIMESTAMP())"
        )
        deadline = time.monotonic() + seconds
        while session.one(waiting):
            if time.monotonic() > deadline:
                raise AssertionError(f"mails still wait: {self.records.errors[-3:]}")
            time.sleep(0.05)
        session.close()

    def _run(self, number: int) -> None:
        worker = _Worker(self, number)
        try:
            while not self._ending.is_set():
                try:
                    busy = worker.poll()
                except (pymysql.Error, LookupError, OSError) as error:
                    # Postal's thread logs it and goes on. The locks stay.
                    self.note_error(repr(error))
                    busy = False
                    worker.reconnect()
                if not busy:
                    self._ending.wait(self._idle)
        except Died:
            with self._lock:
                self.records.deaths += 1
        finally:
            worker.close()

    # What its workers call.

    def note_time(self, kind: str, seconds: float) -> None:
        """One statement's duration."""
        with self._lock:
            longest = self.records.longest
            longest[kind] = max(seconds, longest.get(kind, 0))

    def note_sent(self, row: Row) -> None:
        """One sending."""
        identity = row["server_id"], row["message_id"]
        with self._lock:
            self.records.sent[identity] += 1
            self.records.sent_at[identity] = time.monotonic()

    def note_error(self, text: str) -> None:
        """An error of a thread."""
        with self._lock:
            self.records.errors.append(text)

    def note_lock_error(self, text: str) -> None:
        """A 1205 or a 1213."""
        with self._lock:
            self.records.lock_errors.append(text)

    def reach(self, step: Step, row: Row) -> None:
        """Calls the test's hook."""
        self._hook(step, row)

    def outcome_of(self, row: Row) -> str:
        """What the other side answers to this mail."""
        return self._outcome(row)

    @property
    def postal(self) -> FreshPostal:
        """Where it works."""
        return self._postal

    @property
    def batches(self) -> bool:
        """Whether friends are locked, too."""
        return self._batches

    @property
    def ip_addresses(self) -> tuple[int, ...]:
        """Ids of this host's addresses."""
        return self._ip_addresses

    def name_of(self, thread: int) -> str:
        """What a lock begins with: the process is this one, whatever thread."""
        return f"host:{self._host} pid:{id(self) % 30_000 + 2} thread:{thread}"


class _Worker:
    """One thread with its two connections: of Rails, and of the message part."""

    def __init__(self, player: Player, number: int) -> None:
        self._player = player
        self._name = player.name_of(number)
        self._two = player.postal.version is Version.V2_3
        self._connect()

    def _connect(self) -> None:
        postal = self._player.postal
        self._main = SqlSession(postal.login.connect(postal.name))
        self._messages = SqlSession(postal.message_login.connect())

    def close(self) -> None:
        for session in (self._main, self._messages):
            with suppress(pymysql.Error):
                session.close()

    def reconnect(self) -> None:
        """Both connections anew, as after one was lost."""
        self.close()
        with suppress(pymysql.Error):
            self._connect()

    def poll(self) -> bool:
        """One poll, and the work it brings; False when there was none."""
        leaders = self._locked_by_id() if self._two else self._locked_first()
        for leader in leaders:
            self._player.reach(Step.LOCKED, leader)
            self._work(leader)
        return bool(leaders)

    # Locks.

    def _locked_first(self) -> list[Row]:
        now, holder = _now(), f"{self._name} {secrets.token_hex(8)}"
        addresses = "ip_address_id IS NULL"
        if self._player.ip_addresses:
            marks = ", ".join(map(str, self._player.ip_addresses))
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
        """2.3: a job a row. The requeuer reads all that are due; each job locks its own."""
        due = self._main.rows(
            "SELECT id FROM queued_messages WHERE locked_at IS NULL "
            "AND (retry_after IS NULL OR retry_after < %s)",
            _now() - timedelta(seconds=30),
        )
        for each in due:
            now, holder = _now(), job_name()
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
        if not self._player.batches or leader["batch_key"] is None:
            return []
        now = _now()
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
        if leader["retry_after"] is not None and leader["retry_after"] >= _now():
            self._unlock(leader)
            return
        try:
            friends = self._friends(leader)
        except pymysql.Error:
            self._unlock(leader)
            raise
        self._player.reach(Step.BATCHED, leader)
        for row in (leader, *friends):
            self._one(row)

    def _one(self, row: Row) -> None:
        try:
            self._process(row)
        except (pymysql.Error, LookupError, OSError, ValueError) as error:
            self._player.note_error(repr(error))
            self._retry_later(row)
            self._record(row, "Error", details="An internal error; it is tried again.", time=None)

    def _process(self, row: Row) -> None:
        self._player.reach(Step.STARTED, row)
        message = self._message(row)
        if message is None:
            self._destroy(row)
            return
        if row["attempts"] >= _MOST_ATTEMPTS:
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
            self._player.reach(Step.INSPECTED, row)
        if self._server(row)["mode"] == "Development" and not row["manual"]:
            self._end_with(row, "Held", "The server is in development mode.")
            return
        self._send(row)

    def _send(self, row: Row) -> None:
        self._player.reach(Step.SENDING, row)
        began = time.monotonic()
        result = self._player.outcome_of(row)
        if result == "Sent":
            self._player.note_sent(row)
        self._player.reach(Step.SENT, row)
        self._record(row, result, details=f"{result}.", time=time.monotonic() - began)
        self._player.reach(Step.RECORDED, row)
        if result == "SoftFail":
            self._retry_later(row)
        else:
            self._destroy(row)
        self._player.reach(Step.FINISHED, row)

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
        self._player.reach(Step.HEADERS, row)

    def _record(self, row: Row, status: str, *, details: str, time: float | None) -> None:
        database, at = self._database(row), _now()
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
        self._player.reach(Step.DELIVERED, row)
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
                *((_now() + wait).replace(microsecond=0), row["attempts"] + 1, row["id"]),
            )

    # Reads.

    def _server(self, row: Row) -> Row:
        servers = self._main.rows("SELECT * FROM servers WHERE id = %s LIMIT 1", row["server_id"])
        if not servers:
            raise LookupError(f"server {row['server_id']} is gone")
        return servers[0]

    def _database(self, row: Row) -> str:
        return f"`{self._player.postal.prefix}-server-{row['server_id']}`"

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
        now = _now()
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
                self._player.note_lock_error(f"{kind}: {error.args[0]}")
            raise
        finally:
            self._player.note_time(kind, time.monotonic() - began)


def destroy(main: SqlSession, queued: int) -> None:
    """As Rails destroys a row: by its id alone, and it may be gone."""
    main.connection.begin()
    try:
        main.run("DELETE FROM queued_messages WHERE id = %s", queued)
    except pymysql.Error:
        main.connection.rollback()
        raise
    main.connection.commit()


def count(messages: SqlSession, database: str, counter: str, at: datetime) -> None:
    """One more of a counter in the four tables. `database` is quoted."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    month = day.replace(day=1)
    starts = dict(zip(STATISTICS, (hour, day, month, month.replace(month=1)), strict=True))
    for table, start in starts.items():
        first = ", ".join(str(int(each == counter)) for each in _COUNTERS)
        messages.run(
            f"INSERT INTO {database}.stats_{table} (time, {', '.join(_COUNTERS)}) "
            f"VALUES (%s, {first}) ON DUPLICATE KEY UPDATE {counter} = {counter} + 1",
            int(start.replace(tzinfo=UTC).timestamp()),
        )


def tidy(postal: FreshPostal, stale: timedelta = timedelta(days=1)) -> int:
    """Postal's own hourly task: destroys rows with old locks. Gives how many."""
    limit, last, number = _now() - stale, 0, 0
    while True:
        page = postal.main.rows(
            "SELECT id FROM queued_messages WHERE locked_at IS NOT NULL AND locked_at < %s "
            f"AND id > %s ORDER BY id LIMIT {_TIDY_PAGE}",
            *(limit, last),
        )
        for row in page:
            destroy(postal.main, row["id"])
        number += len(page)
        if len(page) < _TIDY_PAGE:
            return number
        last = page[-1]["id"]


def press_release(postal: FreshPostal, server: int, message: int) -> int:
    """The button Release message, or Redeliver: the id of the message's queue row.

    While there is a row, its retry_after alone is taken away.
    """
    queued = postal.main.one(
        "SELECT id FROM queued_messages WHERE message_id = %s AND server_id = %s LIMIT 1",
        *(message, server),
    )
    if queued:
        postal.main.run("UPDATE queued_messages SET retry_after = NULL WHERE id = %s", queued)
        return int(queued)
    (row,) = postal.servers[server].session.rows(
        "SELECT rcpt_to, scope, route_id, endpoint_id FROM messages WHERE id = %s", message
    )
    domain, now = str(row["rcpt_to"]).rpartition("@")[2], postal.now()
    incoming = f"incoming-rt:{row['route_id']}-ep:{row['endpoint_id']}"
    return postal.main.insert(
        "queued_messages",
        server_id=server,
        message_id=message,
        domain=domain,
        created_at=now,
        updated_at=now,
        route_id=row["route_id"],
        manual=1,
        batch_key=f"outgoing-{domain}" if row["scope"] == OUTGOING else incoming,
    )


def press_cancel_hold(postal: FreshPostal, server: int, message: int) -> None:
    """The button Cancel hold: nothing where the message is not held."""
    session = postal.servers[server].session
    if session.one("SELECT status FROM messages WHERE id = %s", message) != "Held":
        return
    stamp = postal.now().replace(tzinfo=UTC).timestamp()
    session.insert("deliveries", message_id=message, status="HoldCancelled", timestamp=stamp)
    session.run(
        "UPDATE messages SET status = 'HoldCancelled', last_delivery_attempt = %s, held = 0, "
        "hold_expiry = NULL WHERE id = %s",
        *(stamp, message),
    )


def _now() -> datetime:
    """UTC by this host's clock, naive: what a worker writes."""
    return datetime.now(UTC).replace(tzinfo=None)


def hang(event: threading.Event, step: Step, number: int = 1) -> Hook:
    """A hook: the first `number` mails that reach `step` hang until the event."""
    remaining = [number]

    def reached(at: Step, _row: Row) -> None:
        if at is step and remaining[0] > 0:
            remaining[0] -= 1
            event.wait()

    return reached


def die(step: Step, number: int = 1) -> Hook:
    """A hook: the first `number` threads that reach `step` die there."""
    remaining = [number]

    def reached(at: Step, _row: Row) -> None:
        if at is step and remaining[0] > 0:
            remaining[0] -= 1
            raise Died

    return reached


def slow(step: Step, seconds: float) -> Hook:
    """A hook: each mail stays at `step` so long."""

    def reached(at: Step, _row: Row) -> Any:
        if at is step:
            time.sleep(seconds)

    return reached
