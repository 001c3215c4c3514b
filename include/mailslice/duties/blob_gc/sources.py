"""Sources of references to blobs. Each source has one scan, in parts that workers share.

A part is read to its end, or the scan raises. Sources are James' tables, columns that an operator
names, mailslice's own tables and bucket, and the dead letters.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import TypeAlias

from mailslice.admin.deletions.packs import DELETED_PREFIX
from mailslice.codec.blob_ids import is_blob_id
from mailslice.duties.blob_gc.trash import TRASH_PREFIX
from mailslice.engine.worker_stores import stores_of
from mailslice.model.errors import BadSetting, Refused
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.stores import Stores
from mailslice.stores.blobs.factory import open_patient_store
from mailslice.stores.blobs.key_ranges import behind
from mailslice.stores.cassandra.ranges import TokenRange, holes, token_ranges
from mailslice.stores.cassandra.references import (
    Column,
    ReferenceColumns,
    columns_of,
    estimated_sizes,
    partition_key,
    texts,
)
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.rabbitmq.checkout import dead_letters

JAMES: Mapping[str, tuple[str, ...]] = {
    "mailRepositoryContentV2": ("headerblobid", "bodyblobid"),
    "enqueuedMailsV3": ("headerblobid", "bodyblobid"),
    "enqueuedMailsV4": ("headerblobid", "bodyblobid"),
    "messageV3": ("headercontent", "bodycontent"),
    "attachmentV2": ("blobid",),
}
"""James' tables in the order in which a mail passes them: a mail that moves is read again later."""
OWN_WITHOUT_REFERENCES = frozenset(
    "runs locks queue_samples pending_marks slice_statistics deletions undeleted_mails".split()
)
"""Own tables whose blob ids are no references: a report only samples ids, and a deleted mail has
its own copy of the content.
"""
_MAX_RANGES, _PARTITIONS_A_RANGE, _BYTES_A_RANGE = 4096, 25_000, 2**24
_NOT_ESTIMATED = (8 * _PARTITIONS_A_RANGE, 0)
"""(partitions, bytes) until Cassandra's estimate, made every five minutes. A range is a request."""
_ABSENT = "MAILSLICE_GC_ABSENT_SOURCES"
_SOURCES = "MAILSLICE_GC_SOURCES"
_GRAMMAR = "allowed is table:column,column;keyspace.table:column"
_TEXT = frozenset({"text", "ascii", "varchar"})
_BLOB_ID_NAME = re.compile(r"blob_?id|^(header|body)content$", re.IGNORECASE)
_COPIES = frozenset({"imapuidtable", "messageidtable"})
"""Tables whose headerContent repeats that of messageV3."""
_OTHER_BUCKETS = frozenset({"storageinformation", "uploads", "uploadv2"})
"""Tables of James' deleted messages vault and uploads, which have buckets of their own."""
_NO_BLOB = "enqueueId"
"""A field of messages. Its UUID could be a blob id, but is none."""
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')

Page = tuple[int, int, list[str]]
"""(part, rows, blob ids) of one page of a scan."""
Ranges = Callable[[str, str], tuple[TokenRange, ...]]
"""(keyspace, table) -> the token ranges in which the table is read."""


@dataclass(frozen=True, slots=True)
class TableSource:
    """Columns of a table, by token range. `plain`: a value is an id. `buried`: it contains ids."""

    name: str
    where: ReferenceColumns
    ranges: tuple[TokenRange, ...]
    plain: bool = False
    buried: bool = False

    @property
    def parts(self) -> int:
        return len(self.ranges)

    @property
    def holes(self) -> int:
        return holes(self.ranges)

    def scan(self, settings: Settings, parts: Sequence[int]) -> Iterator[Page]:
        """Reads at the consistency of the settings, LOCAL_QUORUM or better."""
        numbers = {self.ranges[part]: part for part in parts}
        for token_range, rows in self.where.rows(stores_of(settings).cassandra, list(numbers)):
            values = [value for row in rows for value in row if value]
            yield (
                numbers[token_range],
                len(rows),
                values
                if self.plain
                else [blob_id for value in values for blob_id in self._ids(value)],
            )

    def _ids(self, value: object) -> Iterator[str]:
        for text in texts(value):
            if self.buried:
                yield from buried_ids(text)
            elif text:
                yield text if isinstance(text, str) else text.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class DeadLetterQueues:
    """The messages of the dead letter queue of every mail queue. A scan requeues them."""

    queues: tuple[QueueName, ...]
    name: str = "deadLetters"
    holes: int = 0

    @property
    def parts(self) -> int:
        return len(self.queues)

    def scan(self, settings: Settings, parts: Sequence[int]) -> Iterator[Page]:
        """Reads all messages of each queue, also ids in messages that are no mails."""
        for part in parts:
            messages, ids = 0, list[str]()
            for body in dead_letters(settings, self.queues[part]):
                messages += 1
                ids += buried_ids(body)
            yield part, messages, ids


@dataclass(frozen=True, slots=True)
class OwnBucket:
    """mailslice's own bucket without trash and deleted mails. A key ends with a referenced id."""

    name: str = "ownBucket"
    parts: int = 1
    holes: int = 0

    def scan(self, settings: Settings, parts: Sequence[int]) -> Iterator[Page]:
        with open_patient_store(settings.s3, settings.own.bucket) as blobs:
            for part in parts:
                for page in chain(
                    blobs.pages("", DELETED_PREFIX),
                    blobs.pages(behind(DELETED_PREFIX), TRASH_PREFIX),
                    blobs.pages(behind(TRASH_PREFIX), ""),
                ):
                    endings = (ending for blob in page for ending in _endings(blob.key))
                    yield part, len(page), [ending for ending in endings if is_blob_id(ending)]


ReferenceSource: TypeAlias = TableSource | DeadLetterQueues | OwnBucket
"""A source by its `name` in reports and MAILSLICE_GC_ABSENT_SOURCES. Workers `scan` its `parts`,
page by page, each to its end. `holes`: gaps and overlaps of the parts.
"""


def sources_of(stores: Stores) -> tuple[list[ReferenceSource], list[str]]:
    """All sources in the order of scanning, and the names of those that settings declare absent.

    Raises Refused if a table is missing and no setting declares it absent: its references are
    unknown. Raises BadSetting if a source of MAILSLICE_GC_SOURCES cannot be scanned.
    """
    settings, session = stores.settings, stores.cassandra
    estimates = cache(partial(estimated_sizes, session))

    def ranges(keyspace: str, table: str) -> tuple[TokenRange, ...]:
        partitions, size = estimates(keyspace).get(table, _NOT_ESTIMATED)
        count = max(partitions // _PARTITIONS_A_RANGE, size // _BYTES_A_RANGE)
        return tuple(token_ranges(session, min(count, _MAX_RANGES)))

    with open_patient_store(settings.s3, settings.own.bucket) as own_blobs:
        bucket = OwnBucket(parts=int(own_blobs.bucket_exists()))
    letters = DeadLetterQueues(tuple(stores.management.dead_letter_queues()))
    tables, absent = _named_tables(session, settings, ranges)
    excused = {name.lower() for name in settings.gc.absent_sources}
    if unknown := [name for name in absent if name.lower() not in excused]:
        raise Refused(
            f"no table for {', '.join(unknown)} in Cassandra at {session.address}: "
            "are the keyspaces right? Where a source really does not exist, say so: "
            f"{_ABSENT}={','.join([*settings.gc.absent_sources, *unknown])}"
        )
    own = _own_tables(session, settings.own.keyspace.lower(), ranges)
    return [letters, bucket, *own, *tables], absent


def _named_tables(
    session: CassandraSession, settings: Settings, ranges: Ranges
) -> tuple[list[TableSource], list[str]]:
    """One source for each of James' and the operator's tables, and the names of missing tables."""
    columns_in = cache(partial(columns_of, session))
    tables: dict[tuple[str, str], tuple[str, dict[str, None]]] = {}
    absent = []
    for name, keyspace, table, columns in _requested_tables(settings):
        existing = columns_in(keyspace)
        on_disk = table if table in existing else table.lower()
        if on_disk not in existing:
            absent.append(name)
            continue
        _, names = tables.setdefault((keyspace, on_disk), (name, {}))
        names.update(dict.fromkeys(_checked(name, columns, existing[on_disk])))
    sources = []
    for (keyspace, table), (name, names) in tables.items():
        table_columns = columns_in(keyspace)[table]
        plain = all(column.type in _TEXT for column in table_columns if column.name in names)
        where = ReferenceColumns(keyspace, table, partition_key(table_columns), tuple(names))
        sources.append(TableSource(name, where, ranges(keyspace, table), plain))
    return sources, absent


def _requested_tables(settings: Settings) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """(name in reports, keyspace, table, columns) of James' tables and of MAILSLICE_GC_SOURCES."""
    james = settings.cassandra.keyspace.lower()
    for name, columns in JAMES.items():
        yield name, james, name.lower(), columns
    for keyspace, table, columns in parse_sources(settings.gc.sources):
        yield f"{keyspace}.{table}" if keyspace else table, keyspace or james, table, columns


def unread_columns(stores: Stores, sources: Sequence[ReferenceSource]) -> list[str]:
    """`table.column` of James' keyspace that is named like a blob id and that no source reads.

    It belongs to an extension or an older James. MAILSLICE_GC_UNREAD_COLUMNS excuses a column.
    """
    keyspace = stores.settings.cassandra.keyspace.lower()
    excused = {name.lower() for name in stores.settings.gc.unread_columns}
    read = {
        f"{source.where.table}.{column}"
        for source in sources
        if isinstance(source, TableSource) and source.where.keyspace == keyspace
        for column in source.where.columns
    }
    named_like_ids = {
        f"{table}.{column.name}"
        for table, columns in columns_of(stores.cassandra, keyspace).items()
        if table not in _COPIES | _OTHER_BUCKETS
        for column in columns
        if _BLOB_ID_NAME.search(column.name)
    }
    return sorted(name for name in named_like_ids - read if name.lower() not in excused)


def with_rows(stores: Stores, columns: Sequence[str]) -> list[str]:
    """The `table.column` of James' keyspace whose table has a row: an empty table cannot refer."""
    keyspace = stores.settings.cassandra.keyspace
    tables = {column.partition(".")[0] for column in columns}
    filled = {
        table
        for table in tables
        if stores.cassandra.execute(f'SELECT * FROM {keyspace}."{table}" LIMIT 1')
    }
    return [column for column in columns if column.partition(".")[0] in filled]


def _own_tables(session: CassandraSession, keyspace: str, ranges: Ranges) -> Iterator[TableSource]:
    tables = columns_of(session, keyspace)
    for table in sorted(set(tables) - OWN_WITHOUT_REFERENCES):
        if names := tuple(column.name for column in tables[table] if column.holds_text):
            where = ReferenceColumns(keyspace, table, partition_key(tables[table]), names)
            yield TableSource(f"own.{table}", where, ranges(keyspace, table), buried=True)


def parse_sources(text: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """(keyspace or empty, table, columns) of MAILSLICE_GC_SOURCES. Raises BadSetting."""
    tables: list[tuple[str, str, list[str]]] = []
    for word in re.split(r"[,;\s]+", text.strip()) if text.strip() else ():
        table, colon, columns = word.partition(":")
        if colon:
            keyspace, _, name = table.rpartition(".")
            tables.append((keyspace.lower(), name, []))
        else:
            columns = word
        if not tables or (colon and not tables[-1][1]):
            raise BadSetting(f"{_SOURCES}={text!r}: {word!r} names no table; {_GRAMMAR}")
        tables[-1][2].extend(column for column in re.split(r"[:+|]", columns) if column)
    for _, table, names in tables:
        if not names:
            raise BadSetting(f"{_SOURCES}={text!r}: no column of {table} is named; {_GRAMMAR}")
    return [(keyspace, table, tuple(names)) for keyspace, table, names in tables]


def buried_ids(value: str | bytes) -> Iterator[str]:
    """Blob ids in a value: the value itself, strings of a JSON document, else quoted strings."""
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    if is_blob_id(text):
        yield text
        return
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = [_unescaped(quoted) for quoted in _QUOTED.findall(text)]
    yield from (quoted for quoted in _strings(document) if is_blob_id(quoted))


def _strings(document: object) -> Iterator[str]:
    waiting = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += [*item.keys(), *(value for name, value in item.items() if name != _NO_BLOB)]
        elif isinstance(item, list):
            waiting += item


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _endings(key: str) -> Iterator[str]:
    """The key, and the rest after each slash: an id in standard base64 contains slashes, too."""
    yield key
    at = key.find("/")
    while at >= 0:
        yield key[at + 1 :]
        at = key.find("/", at + 1)


def _checked(name: str, columns: Sequence[str], existing: Sequence[Column]) -> tuple[str, ...]:
    """The columns as the schema names them. Raises BadSetting if one can hold no reference."""
    known = {column.name: column for column in existing}
    names = []
    for requested in columns:
        column = known.get(requested) or known.get(requested.lower())
        if column is None or not column.holds_text:
            problem = f"does not exist; there are {', '.join(sorted(known))}"
            if column is not None:
                problem = f"is of type {column.type}"
            setting = f" ({_SOURCES})" if columns is not JAMES.get(name) else ""
            raise BadSetting(
                f"column {requested} of {name} {problem}: a reference is a text, "
                f"or a collection of texts{setting}"
            )
        names.append(column.name)
    return tuple(names)
