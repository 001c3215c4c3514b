"""A look at Postal's whole queue: what is stuck, lost or gone. Reads only.

`postal stuck` lists it, and the duty plans by it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TypeVar

from mailslice.duties.stuck_mails_postal.rules import (
    NEWEST,
    PostalStage,
    PostalState,
    age_of,
    group_sizes,
    is_answered,
    is_old,
    is_stuck,
    limit_of,
    lock_timeout_of,
    p99_of,
    stage_of,
)
from mailslice.model.errors import BadInput, MailsliceError, StoreUnavailable
from mailslice.stores.mariadb.failures import NoSuchObject
from mailslice.stores.postal.databases import PostalDatabases
from mailslice.stores.postal.messages import PostalMessage, ServerMessages
from mailslice.stores.postal.rows import PAGE, PostalQueue, QueuedMessage
from mailslice.stores.postal.schema import SchemaDiffers, check_main, check_messages

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SurveyedRow:
    """A queued message that is not as it should be.

    `stage` is None unless it is stuck, `age` without a lock, `message` unless its row was read.
    `newest_record`: the id of the last delivery record that this is judged by; 0 without one.
    """

    row: QueuedMessage
    state: PostalState
    stage: PostalStage | None = None
    age: timedelta | None = None
    message: PostalMessage | None = None
    newest_record: int = 0


@dataclass(frozen=True, slots=True)
class PostalSurvey:
    """`rows`: the oldest lock first, those without one last. `now`: by the main database, naive.

    `unreadable`: why, by server. `queued`: rows of the whole queue.
    """

    now: datetime
    p99: timedelta | None
    lock_timeout: timedelta
    rows: tuple[SurveyedRow, ...]
    unreadable: Mapping[int, str]
    queued: int


def survey(postal: PostalDatabases, lock_timeout: timedelta | None = None) -> PostalSurvey:
    """Look at every queued message of all servers.

    `lock_timeout` None: that of the settings, else 10 times the p99 of sendings, at least 10 min.
    A server that cannot be read is named, and the others go on. Raises SchemaDiffers, and errors
    of the main database.
    """
    if lock_timeout is None:
        lock_timeout = postal.settings.lock_timeout
    check_main(postal.main)
    queue, servers = PostalQueue(postal.main), PostalServers(postal)
    now, p99 = queue.now(), servers.p99()
    limit = lock_timeout_of(p99) if lock_timeout is None else lock_timeout
    locked: list[QueuedMessage] = []
    queued = 0

    def waiting() -> Iterator[QueuedMessage]:
        nonlocal queued
        for row in queue.rows():
            queued += 1
            if row.is_locked:
                locked.append(row)
            elif is_old(row, now, limit):
                yield row

    gone = [*servers.without_message(waiting())]
    groups = group_sizes(locked)
    old = [
        row for row in locked if is_stuck(age_of(row, now), limit_of(limit, p99, groups[row.lock]))
    ]
    surveyed = [*servers.judged(old, now)]
    surveyed += (SurveyedRow(row, PostalState.MESSAGE_GONE) for row in gone)
    surveyed.sort(key=_by_age)
    return PostalSurvey(now, p99, limit, tuple(surveyed), servers.unreadable, queued)


def _by_age(surveyed: SurveyedRow) -> tuple[bool, datetime, int]:
    row = surveyed.row
    since = row.locked_at or row.created_at or datetime.max  # noqa: DTZ901
    return row.locked_at is None, since, row.id


class PostalServers:
    """The mail servers of one Postal. One that cannot be read is tried once."""

    def __init__(self, postal: PostalDatabases) -> None:
        self.unreadable: dict[int, str] = {}
        """Why, by server."""
        self._postal = postal
        self._queue = PostalQueue(postal.main)
        self._readable: dict[int, ServerMessages] = {}
        self._existing: dict[int, bool] = {}
        self._away: str | None = None

    def p99(self) -> timedelta | None:
        """Of the newest sendings of each server, all together."""
        times: Counter[Decimal] = Counter()
        for server in self._queue.servers():
            self._existing[server] = True
            times.update(self._ask(server, lambda messages: messages.sending_times(NEWEST)) or {})
        return p99_of(times)

    def judged(self, rows: Iterable[QueuedMessage], now: datetime) -> Iterator[SurveyedRow]:
        """PostalState and stage of rows whose locks are old, as Postal's rows say it now."""
        for server, page in _by_server(rows):
            exists = self._exists(server)
            judged = self._ask(server, partial(_judged, page)) if exists else None
            state = PostalState.UNKNOWN if exists else PostalState.MESSAGE_GONE
            for one in judged or [SurveyedRow(row, state) for row in page]:
                yield replace(one, age=age_of(one.row, now))

    def without_message(self, rows: Iterable[QueuedMessage]) -> Iterator[QueuedMessage]:
        """Those rows whose message, or server, is gone for certain."""
        for server, page in _by_server(rows):
            if not self._exists(server):
                yield from page
                continue
            ids = {row.message for row in page if row.message}
            gone = self._ask(server, partial(ServerMessages.gone, ids=ids)) or ()
            yield from (row for row in page if row.message in gone)

    def _exists(self, server: int) -> bool:
        """Whether Postal has a row of the server. 0 stands for NULL, of which nothing is known."""
        if server not in self._existing:
            self._existing[server] = not server or bool(self._queue.existing_servers([server]))
        return self._existing[server]

    def _ask(self, server: int, ask: Callable[[ServerMessages], T]) -> T | None:
        """The answer of a server's database; None where it cannot be read."""
        if server in self.unreadable:
            return None
        try:
            return ask(self._messages(server))
        except (BadInput, SchemaDiffers):
            raise
        except MailsliceError as error:
            if isinstance(error, StoreUnavailable):
                self._require_main_or_note_away(str(error))
            self.unreadable[server] = str(error)
            return None

    def _messages(self, server: int) -> ServerMessages:
        if not server:
            raise NoSuchObject("rows of the queue name no server")
        if self._away is not None:
            raise StoreUnavailable(self._away)
        if server not in self._readable:
            messages = ServerMessages(self._postal.messages, self._postal.database_of(server))
            check_messages(self._postal.messages, messages.database)
            self._readable[server] = messages
        return self._readable[server]

    def _require_main_or_note_away(self, why: str) -> None:
        """One database may be away while its MariaDB answers. No MariaDB is waited for twice."""
        if self._away is None:
            try:
                self._postal.messages.rows("SELECT 1")
            except StoreUnavailable:
                if self._postal.same_server:
                    raise
                self._away = why


def _by_server(rows: Iterable[QueuedMessage]) -> Iterator[tuple[int, list[QueuedMessage]]]:
    """Pages of rows of one server each."""
    pages: defaultdict[int, list[QueuedMessage]] = defaultdict(list)
    for row in rows:
        pages[row.server].append(row)
        if len(pages[row.server]) == PAGE:
            yield row.server, pages.pop(row.server)
    yield from pages.items()


def _judged(rows: Collection[QueuedMessage], database: ServerMessages) -> list[SurveyedRow]:
    """Without ages."""
    ids = {row.message for row in rows}
    messages, deliveries = database.by_id(ids), database.deliveries(ids)
    gone = database.gone(ids - messages.keys() - {0})
    contents = database.has_own_header(
        message
        for row in rows
        if (message := messages.get(row.message)) is not None
        and not is_answered(row, deliveries.get(message.id, []))
    )
    judged = []
    for row in rows:
        message = messages.get(row.message)
        if message is None:  # NULL names no message, so none is gone
            state = PostalState.MESSAGE_GONE if row.message in gone else PostalState.UNKNOWN
            judged.append(SurveyedRow(row, state))
            continue
        records = deliveries.get(message.id, [])
        state, stage = PostalState.CONTENT_LOST, None
        if message.id in contents or is_answered(row, records):
            has_header = contents.get(message.id, False)
            state = PostalState.STUCK
            stage = stage_of(row, message, records, has_own_header=has_header)
        newest = records[-1].id if records else 0
        judged.append(SurveyedRow(row, state, stage, message=message, newest_record=newest))
    return judged
