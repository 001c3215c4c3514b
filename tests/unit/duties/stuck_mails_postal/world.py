"""Postal and mailslice's own tables in memory: tests of the duty's decisions need no MariaDB.

tests/services/postal tests the SQL statements.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.codec.row import instant
from mailslice.duties.stuck_mails_postal import (
    closing_recovery,
    duty,
    quarantined,
    releases,
    survey,
    work,
)
from mailslice.duties.stuck_mails_postal.duty import DUTY
from mailslice.duties.stuck_mails_postal.params import Params
from mailslice.duties.stuck_mails_postal.planned import PostalPlan
from mailslice.duties.stuck_mails_postal.quarantine import PostalQuarantine, entry_of
from mailslice.duties.stuck_mails_postal.releases import PostalReleases, ReleaseRequest
from mailslice.duties.stuck_mails_postal.rules import PostalStage
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.model.settings import PostalMode, load_settings
from mailslice.stores.mariadb.failures import NoSuchObject
from mailslice.stores.own import SHAPES, OwnRecords
from mailslice.stores.own.postal_quarantine import PostalEntry
from mailslice.stores.own.records import TableShape
from mailslice.stores.postal.changes import PostalRecord, RowChanged
from mailslice.stores.postal.messages import PostalDelivery, PostalMessage
from mailslice.stores.postal.rows import QueuedMessage
from tests.unit.duties.judging import run_of

NOW = datetime(2026, 11, 23, 12)  # noqa: DTZ001 - as Postal's: naive, in UTC
MESSAGE = 7
CONTENT = b"Subject: Hello\r\n\r\nOne line.\r\n"


def seconds(moment: datetime) -> Decimal:
    return Decimal((moment - datetime(1970, 1, 1)) // timedelta(seconds=1))  # noqa: DTZ001


class MemoryRecords:
    """The double of one of mailslice's own tables."""

    def __init__(self, shape: TableShape) -> None:
        self._shape = shape
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def add(self, values: Mapping[str, Any], _ttl: object = None) -> dict[str, Any] | None:
        if (row := self.get(values)) is None:
            self.put(values)
        return row

    def put(self, values: Mapping[str, Any], _ttl: object = None) -> None:
        self._rows[self._key(values)] = dict.fromkeys(self._shape.columns) | dict(values)

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        row = self._rows.get(self._key(key))
        return None if row is None else self._read(row)

    def rows(self, partition: Mapping[str, Any], _limit: object = None) -> Iterator[Any]:
        rows = (self._read(self._rows[key]) for key in sorted(self._rows))
        return iter([row for row in rows if partition.items() <= row.items()])

    def partitions(self) -> Iterator[Any]:
        keys = {tuple(row[name] for name in self._shape.partition) for row in self._rows.values()}
        return (dict(zip(self._shape.partition, key, strict=True)) for key in keys)

    def change(
        self,
        key: Mapping[str, Any],
        changes: Mapping[str, Any],
        expected: Mapping[str, Any],
        _ttl: object = None,
    ) -> bool:
        row = self._rows.get(self._key(key))
        if row is None or any(row[name] != value for name, value in expected.items()):
            return False
        row.update(changes)
        return True

    def remove_if(self, key: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
        return self.change(key, {}, expected) and bool(self._rows.pop(self._key(key)))

    def _key(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(values[name] for name in self._shape.key)

    def _read(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: instant(value)
            if value is not None and self._shape.columns[name] == "timestamp"
            else value
            for name, value in row.items()
        }


class World:
    """Rows by id, or by (server, message). `unreadable`: servers whose database is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, NOW
        self.queue: dict[int, QueuedMessage] = {}
        self.messages: dict[tuple[int, int], PostalMessage] = {}
        self.contents: dict[tuple[int, int], bytes] = {}
        self.records: defaultdict[tuple[int, int], list[PostalDelivery]] = defaultdict(list)
        self.servers: set[int] = set()
        self.unreadable: set[int] = set()
        self.newest: int | None = None
        """The id of the newest message; None: larger than all ids."""
        self.while_closing: Callable[[], object] = lambda: None
        """A change by somebody else between the read, or the copy, and the transaction."""
        self.url = SimpleNamespace(database="postal", address="db:3306")
        self.host = "db-1"
        settings = load_settings(
            {
                "MAILSLICE_ARTIFACTS": str(folder),
                "MAILSLICE_POSTAL_URL": "mysql://u@db/postal",
                "MAILSLICE_OWN_URL": "mysql://u@own/mailslice",
            },
            state_file=folder / "none",
        )
        tables = {shape.name: MemoryRecords(shape) for shape in SHAPES}
        postal = SimpleNamespace(
            main=self,
            messages=self,
            same_server=True,
            settings=settings.postal,
            database_of=lambda server: f"postal-server-{server}",
        )
        self.stores: Any = SimpleNamespace(
            settings=settings,
            records=OwnRecords(lambda shape: tables[shape.name]),
            existing_records=lambda shape: tables[shape.name],
            postal=postal,
        )
        self.run = self.new_run()

    def new_run(self, name: str = "r-1", params: Params | None = None) -> Run:
        lock: Any = SimpleNamespace(check=lambda: None)
        return run_of(
            self.folder,
            "stuck_mails_postal",
            params or Params(mode=PostalMode.CLOSE),
            name=name,
            stores=self.stores,
            acquired_locks=(lock,),
        )

    def apply(self, name: str = "r-1", **params: Any) -> tuple[dict[str, int], Counter[str]]:
        """Runs the duty in mode close. Returns counts by kind of action, and by reason to skip."""
        return self.applied(*self.planned(name, **params))

    def planned(self, name: str = "r-1", **params: Any) -> tuple[Run, PostalPlan]:
        run = self.new_run(name, Params(**{"mode": PostalMode.CLOSE, **params}))
        return run, DUTY.plan(run)

    def applied(self, run: Run, plan: PostalPlan) -> tuple[dict[str, int], Counter[str]]:
        progress = Progress(run, plan, DUTY.kinds)
        with progress:
            DUTY.apply(run, plan, progress)
        return {kind: count for kind, count in progress.kinds.items() if count}, progress.skipped

    def releases(self, *, accept_duplicates: bool = False) -> PostalReleases:
        request = ReleaseRequest("night shift", accept_duplicates=accept_duplicates)
        (lock,) = self.run.acquired_locks
        return PostalReleases(self.stores, self.run.clock, request, lock)

    @property
    def decisions(self) -> list[tuple[str, str]]:
        """(action, reason) of each decision."""
        records = self.stores.records.postal_decisions
        rows = records.list(self.run.clock() - timedelta(days=1), self.run.clock())
        return [(row.action, row.why) for row in rows]

    @property
    def quarantine(self) -> PostalQuarantine:
        return PostalQuarantine(self.stores.records.postal_quarantine, self.run.folder.artifacts)

    @property
    def entries(self) -> list[PostalEntry]:
        return list(self.stores.records.postal_quarantine.list())

    @property
    def copies(self) -> list[bytes]:
        return [file.read_bytes() for file in self.folder.glob("postal/quarantine/*")]

    def stuck(
        self,
        server: int = 1,
        message: int = MESSAGE,
        *,
        queued: int | None = None,
        locked_for: timedelta = timedelta(hours=2),
        content: bytes = CONTENT,
        **columns: Any,
    ) -> QueuedMessage:
        """Adds a message whose worker died after it may have sent the message."""
        at = NOW - locked_for
        number = queued or len(self.queue) + 1
        row = QueuedMessage(
            *(number, server, message, "example.org", f"host:a pid:{number} thread:1", at),
            *(None, at, at, None, 0, None, 0, None),
        )
        self.queue[number] = replace(row, **columns)
        self.servers.add(server)
        self.messages[server, message] = PostalMessage(
            message, "outgoing", "b@y", "a@x", 0, "raw-2026-11-23", 1, 2
        )
        self.contents[server, message] = content
        return self.queue[number]

    def cut_off(self, *, copied: bool = True, **stuck: Any) -> QueuedMessage:
        """Adds a message whose closing was killed after its copy was complete, or right before."""
        row = self.stuck(**stuck)
        message = self.messages[row.server, row.message]
        noted = self.quarantine.note(entry_of(self.run, row, PostalStage.MAYBE_SENT, message))
        assert noted is not None
        if copied:
            self.quarantine.copy(noted, self.contents[row.server, row.message])
        return row

    def lose_content(self, server: int = 1, message: int = MESSAGE) -> None:
        del self.contents[server, message]

    def write(
        self,
        status: str,
        at: datetime | None = None,
        *,
        server: int = 1,
        message: int = MESSAGE,
        log_id: str = "1f3a9c",
    ) -> None:
        """Adds a delivery record."""
        of_message = self.records[server, message]
        of_message.append(
            PostalDelivery(len(of_message) + 1, status, seconds(at or self.now), log_id)
        )

    def statuses(self, server: int = 1, message: int = MESSAGE) -> list[str | None]:
        return [record.status for record in self.records[server, message]]

    def rows(self, sql: str, *_: object) -> list[tuple[Any, ...]]:
        """The answer to a query of the connection itself."""
        return [(self.host, 3306)] if "@@hostname" in sql else [(1,)]

    def another(self, database: str, host: str) -> None:
        """Changes the URL to another Postal, which has a message with the same ids."""
        self.url.database, self.host = database, host
        self.records.clear()
        self.queue.clear()
        self.stuck(queued=20)


class Queue:
    """The double of PostalQueue."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.now

    def rows(self) -> Iterator[QueuedMessage]:
        return iter(list(self._world.queue.values()))

    def by_id(self, ids: Iterable[int]) -> dict[int, QueuedMessage]:
        return {one: self._world.queue[one] for one in ids if one in self._world.queue}

    def of_messages(self, server: int, messages: Iterable[int]) -> dict[int, QueuedMessage]:
        wanted = {(server, message) for message in messages}
        rows = self._world.queue.values()
        return {row.message: row for row in rows if (row.server, row.message) in wanted}

    def has_other(self, row: QueuedMessage) -> bool:
        return False

    def servers(self) -> Iterator[int]:
        return iter(sorted(self._world.servers))

    def has_server(self, server: int) -> bool:
        if not self._world.servers:
            raise NoSuchObject("Postal has no mail server at all, as while it is being restored")
        return server in self._world.servers


class Messages:
    """The double of ServerMessages."""

    def __init__(self, world: World, database: str) -> None:
        self._world, self.database = world, database
        self._server = int(database.rpartition("-")[2])

    def exists(self) -> bool:
        return self._server not in self._world.unreadable

    def deleted_ids(self, ids: Iterable[int]) -> set[int]:
        gone = set(ids) - self.by_id(ids).keys()
        newest = self._world.newest
        if newest is not None and gone and max(gone) > newest:
            raise NoSuchObject(f"message {max(gone)} is none yet in {self.database}")
        return gone

    def by_id(self, ids: Iterable[int]) -> dict[int, PostalMessage]:
        return self._of(self._world.messages, ids)

    def deliveries(self, ids: Iterable[int]) -> dict[int, list[PostalDelivery]]:
        return self._of(self._world.records, ids)

    def has_own_header(self, rows: Iterable[PostalMessage]) -> dict[int, bool]:
        return dict.fromkeys(self._of(self._world.contents, [row.id for row in rows]), True)

    def content(self, row: PostalMessage) -> bytes | None:
        return self._of(self._world.contents, [row.id]).get(row.id)

    def sending_times(self, _newest: int) -> Counter[Decimal]:
        self._of({}, ())
        return Counter()

    def _of(self, table: Mapping[tuple[int, int], Any], ids: Iterable[int]) -> dict[int, Any]:
        if self._server in self._world.unreadable:
            raise NoSuchObject(f"{self.database} is not there")
        return {one: table[self._server, one] for one in ids if (self._server, one) in table}


class Changes:
    """The double of PostalChanges."""

    def __init__(self, postal: Any) -> None:
        self._world: World = postal.main

    def is_there(self, row: QueuedMessage) -> bool:
        now = self._world.queue.get(row.id)
        return now is not None and now.lock == row.lock

    def close(self, row: QueuedMessage, record: PostalRecord, _newest: int) -> None:
        self.remove(row)
        self.record(row.server, row.message, record)

    fail = close

    def remove(self, row: QueuedMessage) -> None:
        self._world.while_closing()
        if not self.is_there(row):
            raise RowChanged(f"row {row.id} of Postal's queue is not as it was read")
        del self._world.queue[row.id]

    def record(self, server: int, message: int, record: PostalRecord) -> None:
        self._world.write(record.status, server=server, message=message, log_id=record.log_id)

    def cancel_hold(self, server: int, message: int, record: PostalRecord, _newest: int) -> None:
        self.record(server, message, record)

    def requeue(self, row: QueuedMessage) -> int | None:
        number = max(self._world.queue, default=row.id) + 1
        self._world.queue[number] = replace(row, id=number, locked_by=None, locked_at=None)
        return number


def fake(patch: pytest.MonkeyPatch) -> None:
    """Patches the duty to work on a `World`."""
    for module in (duty, quarantined, survey, closing_recovery, work):
        patch.setattr(module, "PostalQueue", Queue)
    patch.setattr(survey, "ServerMessages", Messages)
    for module in (releases, work):
        patch.setattr(module, "PostalChanges", Changes)
    for name in ("check_main", "check_messages"):
        patch.setattr(survey, name, lambda *_: None)
