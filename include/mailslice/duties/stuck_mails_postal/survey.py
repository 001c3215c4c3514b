"""A survey of Postal's whole queue: what is stuck, lost or gone. Reads only.

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
    `newest_record`: the id of the newest delivery record of the message then; 0 without one.
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

    `unreadable`: server -> why it cannot be read. `queued`: rows of the whole queue.
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
    check_main(postal.main)
    queue, servers = PostalQueue(postal.main), PostalServers(postal)
    now, p99 = queue.now(), servers.p99()
    limit = lock_timeout or postal.settings.lock_timeout or lock_timeout_of(p99)
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
    judged = [*servers.classified(old, now)]
    # The p99 lacks unreadable servers, and a batch may span servers: no state of it is certain.
    doubted = {row.lock for row in locked if row.server in servers.unreadable}
    surveyed = [
        SurveyedRow(item.row, PostalState.UNKNOWN, age=item.age)
        if item.row.lock in doubted
        or (item.state is PostalState.MESSAGE_GONE and item.row.server in servers.not_whole)
        else item
        for item in judged
    ]
    certain = (row for row in gone if row.server not in servers.not_whole)
    surveyed += (SurveyedRow(row, PostalState.MESSAGE_GONE) for row in certain)
    surveyed.sort(key=_by_age)
    unreadable = {**servers.not_whole, **servers.unreadable}
    return PostalSurvey(now, p99, limit, tuple(surveyed), unreadable, queued)


def _by_age(surveyed: SurveyedRow) -> tuple[bool, datetime, int]:
    row = surveyed.row
    since = row.locked_at or row.created_at or datetime.max  # noqa: DTZ901
    return row.locked_at is None, since, row.id


def messages_of(postal: PostalDatabases, server: int) -> ServerMessages | None:
    """The messages of a server; None if both its row and its database are gone.

    Raises NoSuchObject if only the row is missing, or every row: a restore may be under way.
    """
    if not server:
        raise NoSuchObject("rows of the queue name no server")
    messages = ServerMessages(postal.messages, postal.database_of(server))
    if PostalQueue(postal.main).has_server(server):
        return messages
    if messages.exists():
        raise NoSuchObject(f"Postal has no row of it, and {messages.database} is there")
    return None


class PostalServers:
    """The mail servers of one Postal. An unreadable server is tried once."""

    def __init__(self, postal: PostalDatabases, unreadable: dict[int, str] | None = None) -> None:
        self.unreadable = {} if unreadable is None else unreadable
        """Server -> why it cannot be read."""
        self.not_whole: dict[int, str] = {}
        """Server -> why none of its messages counts as gone. Existing messages get a state."""
        self._postal = postal
        self._queue = PostalQueue(postal.main)
        self._known: dict[int, ServerMessages | None] = {}  # None: it is gone
        self._away: str | None = None

    def p99(self) -> timedelta | None:
        """The p99 of the newest sendings of all servers together."""
        times: Counter[Decimal] = Counter()
        for server in self._queue.servers():
            times.update(self.ask(server, lambda messages: messages.sending_times(NEWEST)) or {})
        return p99_of(times)

    def classified(self, rows: Iterable[QueuedMessage], now: datetime) -> Iterator[SurveyedRow]:
        """State and stage of rows with old locks, by Postal's rows as they are now."""
        for server, page in _by_server(rows):
            judged = self.ask(server, partial(_staged, page, partial(self._deleted_ids, server)))
            is_gone = self._known.get(server, False) is None
            state = PostalState.MESSAGE_GONE if is_gone else PostalState.UNKNOWN
            for item in judged or [SurveyedRow(row, state) for row in page]:
                yield replace(item, age=age_of(item.row, now))

    def without_message(self, rows: Iterable[QueuedMessage]) -> Iterator[QueuedMessage]:
        """The rows whose message, or server, is gone for certain."""
        for server, page in _by_server(rows):
            ids = {row.message for row in page if row.message}
            gone = self.ask(server, partial(self._deleted_ids, server, ids)) or ()
            is_gone = self._known.get(server, False) is None
            yield from (row for row in page if is_gone or row.message in gone)

    def _deleted_ids(self, server: int, ids: Collection[int], messages: ServerMessages) -> set[int]:
        try:
            return messages.deleted_ids(ids)
        except NoSuchObject as error:
            self.not_whole[server] = str(error)
            return set()

    def ask(self, server: int, query: Callable[[ServerMessages], T]) -> T | None:
        """The answer of a server's database; None where it cannot be read, or is gone."""
        if server in self.unreadable:
            return None
        try:
            messages = self._messages(server)
            return None if messages is None else query(messages)
        except (BadInput, SchemaDiffers):
            raise
        except MailsliceError as error:
            if isinstance(error, StoreUnavailable):
                self._require_main_or_note_away(str(error))
            self.unreadable[server] = str(error)
            return None

    def _messages(self, server: int) -> ServerMessages | None:
        if self._away is not None:
            raise StoreUnavailable(self._away)
        if server not in self._known:
            if (messages := messages_of(self._postal, server)) is not None:
                check_messages(self._postal.messages, messages.database)
            self._known[server] = messages
        return self._known[server]

    def _require_main_or_note_away(self, why: str) -> None:
        """If the messages' MariaDB is away, raise if it is the main one, else ask it no more."""
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


def _staged(
    rows: Collection[QueuedMessage],
    gone_of: Callable[[Collection[int], ServerMessages], set[int]],
    database: ServerMessages,
) -> list[SurveyedRow]:
    """The rows of one server with state and stage, without ages."""
    ids = {row.message for row in rows}
    messages, deliveries = database.by_id(ids), database.deliveries(ids)
    gone = gone_of(ids - messages.keys() - {0}, database)
    contents = database.has_own_header(
        message
        for row in rows
        if (message := messages.get(row.message)) is not None
        and not is_answered(row, deliveries.get(message.id, []))
    )
    judged = []
    for row in rows:
        message = messages.get(row.message)
        if message is None:  # NULL names no message: UNKNOWN, not gone
            state = PostalState.MESSAGE_GONE if row.message in gone else PostalState.UNKNOWN
            judged.append(SurveyedRow(row, state))
            continue
        records = deliveries.get(message.id, [])
        state, stage = PostalState.CONTENT_LOST, None
        if message.id in contents or is_answered(row, records):
            state = PostalState.STUCK
            stage = stage_of(row, message, records, has_own_header=contents.get(message.id, False))
        newest = records[-1].id if records else 0
        judged.append(SurveyedRow(row, state, stage, message=message, newest_record=newest))
    return judged
