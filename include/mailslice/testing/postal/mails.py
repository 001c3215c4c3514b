"""Mails in Postal's databases, in the states in which a dead worker can leave them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mailslice.testing.postal.databases import FreshPostal, ServerDatabase, epoch
from mailslice.testing.postal.schema import MESSAGE_OPTIONS, RAW_TABLE

OUTGOING, INCOMING = "outgoing", "incoming"
OWN_HEADER = "X-Postal-MsgID"


class Ended(StrEnum):
    """Where the worker of a mail ended, and so the state of the mail's rows."""

    NOT_YET = "waits, never locked"
    LOCKED = "after the lock"
    INSPECTED = "after the spam check"
    HEADERS = "after the own headers, before, in or after the sending"
    RECORDED = "after the delivery record Sent, before messages"
    SENT = "before the finish: Sent"
    HARD_FAIL = "before the finish: HardFail"
    HELD = "before the finish: Held"
    PROCESSED = "before the finish: Processed"
    SOFT_FAIL = "before retry_later: SoftFail"
    ERROR = "before retry_later: Error"


_RECORDS = {
    Ended.RECORDED: "Sent",
    Ended.SENT: "Sent",
    Ended.HARD_FAIL: "HardFail",
    Ended.HELD: "Held",
    Ended.PROCESSED: "Processed",
    Ended.SOFT_FAIL: "SoftFail",
    Ended.ERROR: "Error",
}


@dataclass(frozen=True, slots=True)
class PostalMail:
    """The ids of one mail's rows. `queued` is 0 if there is no queue row."""

    server: int
    message: int
    queued: int
    content: bytes
    """Headers, CRLF CRLF, body: the present content of the raw table."""
    locked_by: str | None = None
    locked_at: datetime | None = None


def worker_name(*, leader: bool = True, host: str = "worker-1", thread: int = 1) -> str:
    """A lock name of 3.x. The lock of a batch's leader has 16 random hex digits."""
    name = f"host:{host} pid:{secrets.randbelow(30_000) + 2} thread:{thread}"
    return f"{name} {secrets.token_hex(8)}" if leader else name


def job_name(host: str = "worker-1") -> str:
    """A lock name of 2.3."""
    return f"host:{host} pid:{secrets.randbelow(30_000) + 2} job:{secrets.token_hex(4)}"


class PostalMails:
    """Writes mails into one Postal."""

    def __init__(self, databases: FreshPostal) -> None:
        self._databases = databases
        self._main = databases.main

    def mail(
        self,
        server: ServerDatabase,
        ended: Ended = Ended.NOT_YET,
        *,
        scope: str = OUTGOING,
        locked_for: timedelta = timedelta(hours=2),
        locked_by: str | None = None,
        locked_at: datetime | None = None,
        rcpt_to: str = "user@example.org",
        mail_from: str = "sender@example.com",
        subject: str = "Hello",
        headers: bytes | None = None,
        body: bytes | None = b"One line.\r\n",
        attempts: int = 0,
        **queue_row: Any,
    ) -> PostalMail:
        """Writes a mail that waits, or whose worker ended at this point, locked `locked_for` ago.

        `headers` has no line end at its end. `body` None: no body row. `queue_row`: more columns.
        """
        now = self._databases.now()
        at = locked_at or now - locked_for
        content = headers or (f"From: {mail_from}\r\nTo: {rcpt_to}\r\nSubject: {subject}".encode())
        if ended not in (Ended.NOT_YET, Ended.LOCKED, Ended.INSPECTED) and scope == OUTGOING:
            content = with_own_headers(content, secrets.token_hex(6))
        message = self.message(
            server,
            scope=scope,
            rcpt_to=rcpt_to,
            mail_from=mail_from,
            subject=subject,
            headers=content,
            body=body,
            arrived=at - timedelta(seconds=1),
            inspected=int(
                ended is Ended.INSPECTED
                or (scope == INCOMING and ended not in (Ended.NOT_YET, Ended.LOCKED))
            ),
        )
        if status := _RECORDS.get(ended):
            self.delivery(
                server,
                message,
                status,
                at=at + timedelta(seconds=1),
                follow=ended is not Ended.RECORDED,
            )
        holder = None if ended is Ended.NOT_YET else (locked_by or worker_name())
        locked = None if ended is Ended.NOT_YET else at
        queued = self.queue_row(
            server.id,
            message,
            domain=rcpt_to.rpartition("@")[2],
            locked_by=holder,
            locked_at=locked,
            created_at=at - timedelta(seconds=1),
            attempts=attempts,
            **queue_row,
        )
        return PostalMail(
            server.id, message, queued, content + b"\r\n\r\n" + (body or b""), holder, locked
        )

    def batch(
        self,
        server: ServerDatabase,
        size: int,
        ended: Ended = Ended.LOCKED,
        *,
        locked_for: timedelta = timedelta(hours=2),
        **mail: Any,
    ) -> list[PostalMail]:
        """Writes mails of one batch: all have one lock time and a lock name without random part."""
        at, holder = self._databases.now() - locked_for, worker_name(leader=False)
        return [
            self.mail(server, ended, locked_by=holder, locked_at=at, **mail) for _ in range(size)
        ]

    def message(
        self,
        server: ServerDatabase,
        *,
        scope: str = OUTGOING,
        rcpt_to: str | None = "user@example.org",
        mail_from: str = "sender@example.com",
        subject: str = "Hello",
        headers: bytes = b"Subject: Hello",
        body: bytes | None = b"One line.\r\n",
        arrived: datetime | None = None,
        **columns: Any,
    ) -> int:
        """Inserts a message and its two raw rows, as Postal does; returns its id."""
        arrived = arrived or self._databases.now()
        table = self.raw_table(server, arrived)
        headers_id = server.session.insert(f"`{table}`", data=headers, next=None)
        body_id = server.session.insert(f"`{table}`", data=body, next=None) if body else None
        values = {
            "token": secrets.token_hex(6),
            "scope": scope,
            "rcpt_to": rcpt_to,
            "mail_from": mail_from,
            "subject": subject,
            "message_id": f"{secrets.token_hex(8)}@example.com",
            "timestamp": epoch(arrived),
            "status": "Pending",
            "size": str(len(headers) + len(body or b"")),
            "raw_table": table,
            "raw_headers_id": headers_id,
            "raw_body_id": body_id,
        }
        return server.session.insert("messages", **{**values, **columns})

    def raw_table(self, server: ServerDatabase, arrived: datetime) -> str:
        """The name of a day's raw table. Creates the table if it is missing."""
        name = f"raw-{arrived:%Y-%m-%d}"
        known = "SELECT 1 FROM raw_message_sizes WHERE table_name = %s"
        if not server.session.one(known, name):
            server.session.run(f"CREATE TABLE `{name}` ({RAW_TABLE}) {MESSAGE_OPTIONS}")
            server.session.insert("raw_message_sizes", table_name=name, size=0)
        return name

    def delivery(
        self,
        server: ServerDatabase,
        message: int,
        status: str,
        *,
        at: datetime | None = None,
        time: float | None = 0.5,
        follow: bool = True,
        details: str = "",
    ) -> int:
        """Inserts a delivery record. `follow`: also updates the message's row."""
        stamp = epoch(at or self._databases.now())
        identity = server.session.insert(
            "deliveries",
            message_id=message,
            status=status,
            details=details,
            output="",
            sent_with_ssl=0,
            log_id=secrets.token_hex(4),
            timestamp=stamp,
            time=time,
        )
        if follow:
            server.session.run(
                "UPDATE messages SET status = %s, last_delivery_attempt = %s, held = %s, "
                "hold_expiry = NULL WHERE id = %s",
                *(status, stamp, int(status == "Held"), message),
            )
        return identity

    def queue_row(
        self,
        server: int,
        message: int,
        *,
        created_at: datetime | None = None,
        locked_by: str | None = None,
        locked_at: datetime | None = None,
        **columns: Any,
    ) -> int:
        """Inserts a row into queued_messages; returns its id."""
        created_at = created_at or self._databases.now()
        domain = columns.pop("domain", "example.org")
        values = {
            "server_id": server,
            "message_id": message,
            "domain": domain,
            "locked_by": locked_by,
            "locked_at": locked_at,
            "created_at": created_at,
            "updated_at": created_at,
            "attempts": 0,
            "manual": 0,
            "batch_key": f"outgoing-{domain}",
        }
        return self._main.insert("queued_messages", **{**values, **columns})

    def many(
        self,
        server: ServerDatabase,
        count: int,
        *,
        domain: str = "example.org",
        locked_by: str | None = None,
        locked_for: timedelta = timedelta(hours=2),
        locks: Iterable[str | None] = (),
    ) -> list[int]:
        """Inserts similar messages of one day, and their queue rows; returns the message ids.

        `locked_by`, or one of `locks` for each row: the rows were locked `locked_for` ago.
        """
        now = self._databases.now()
        table = self.raw_table(server, now)
        header = int(server.session.one(f"SELECT COALESCE(MAX(id), 0) FROM `{table}`")) + 1
        first = int(server.session.one("SELECT COALESCE(MAX(id), 0) FROM messages")) + 1
        raw, messages, queue = [], [], []
        names = list(locks) or [locked_by] * count
        for number in range(count):
            message, raw_id = first + number, header + 2 * number
            head = f"From: sender@example.com\r\nTo: u{number}@{domain}\r\nSubject: {number}"
            raw += [(raw_id, head.encode()), (raw_id + 1, b"One line.\r\n")]
            messages.append(
                (
                    *(message, secrets.token_hex(6), OUTGOING, f"u{number}@{domain}"),
                    *("sender@example.com", str(number), epoch(now), "Pending", "64"),
                    *(table, raw_id, raw_id + 1),
                )
            )
            at = now - locked_for - timedelta(microseconds=number)
            lock = (names[number], at if names[number] else None)
            queue.append((server.id, message, domain, *lock, now - locked_for, now, 0, 0))
        server.session.insert_all(f"`{table}`", ("id", "data"), raw)
        columns = (
            "id token scope rcpt_to mail_from subject timestamp status size raw_table "
            "raw_headers_id raw_body_id"
        )
        server.session.insert_all("messages", columns.split(), messages)
        columns = (
            "server_id message_id domain locked_by locked_at created_at updated_at attempts manual"
        )
        self._main.insert_all("queued_messages", columns.split(), queue)
        return list(range(first, first + count))

    # Losses that Postal's retention and its operators cause.

    def lose_message(self, server: ServerDatabase, message: int) -> None:
        """Deletes the message as retention does. Its queue row and a later message exist."""
        if message == server.session.one("SELECT MAX(id) FROM messages"):
            self.message(server)
        for table, column in (("deliveries", "message_id"), ("messages", "id")):
            server.session.run(f"DELETE FROM {table} WHERE {column} = %s", message)

    def lose_raw_table(self, server: ServerDatabase, table: str, *, noted: bool = True) -> None:
        """Drops a day's table as retention does. `noted` False: the messages still name it."""
        if noted:
            server.session.run(
                "UPDATE messages SET raw_table = NULL, raw_headers_id = NULL, raw_body_id = NULL, "
                "size = NULL WHERE raw_table = %s",
                table,
            )
        server.session.run("DELETE FROM raw_message_sizes WHERE table_name = %s", table)
        server.session.run(f"DROP TABLE `{table}`")

    def lose_header_row(self, server: ServerDatabase, message: int) -> None:
        """Deletes the header row of a message."""
        (row,) = server.session.rows(
            "SELECT raw_table, raw_headers_id FROM messages WHERE id = %s", message
        )
        server.session.run(f"DELETE FROM `{row['raw_table']}` WHERE id = %s", row["raw_headers_id"])

    def lose_server(self, server: ServerDatabase, *, row_only: bool = False) -> None:
        """Deletes the server's row, and its database unless `row_only`. Queue rows may stay."""
        self._main.run("DELETE FROM servers WHERE id = %s", server.id)
        if not row_only:
            server.session.run(f"DROP DATABASE `{server.database}`")


def with_own_headers(headers: bytes, token: str) -> bytes:
    """The header block after a worker has put its two headers before the others."""
    signature = b"DKIM-Signature: v=1; a=rsa-sha256; d=example.com; b=c2lnbmVk"
    return signature + b"\r\n" + f"{OWN_HEADER}: {token}".encode() + b"\r\n" + headers
