"""James' own rows through our classes and a real Cassandra, both ways."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from mailslice.bench.clearing import marked_ids
from mailslice.codec import events
from mailslice.codec.row import COLUMNS, from_row, instant, to_row
from mailslice.model.configuration import ViewConfiguration
from mailslice.model.names import CONFIGURATION_AGGREGATE, QueueTable
from mailslice.stores import open_stores
from mailslice.stores.cassandra.ddl import create_queue_tables, queue_tables

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(
    path.stem for path in GOLDEN.glob("*.json") if "cassandra" in json.loads(path.read_text())
)


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as stores:
        stores.tables.create()
        create_queue_tables(stores.cassandra, queue_tables(QueueTable.V3))
        yield stores


def golden_row(case):
    """Column -> value as the driver binds it."""
    columns = json.loads((GOLDEN / f"{case}.json").read_text())["cassandra"]["row"]
    return {name: bound(column["type"], column["value"]) for name, column in columns.items()}


def bound(kind, value):
    if value is None or kind in ("text", "varchar", "int"):
        return value
    if kind == "timestamp":
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
    if kind == "uuid":
        return UUID(value)
    if kind.startswith("map"):
        return {name: bytes.fromhex(text) for name, text in value.items()}
    return [tuple(item) if isinstance(item, list) else item for item in value]


def as_golden(value):
    if isinstance(value, datetime):
        return instant(value)
    if hasattr(value, "items"):
        return dict(value.items())
    return (
        [tuple(item) if isinstance(item, tuple) else item for item in value]
        if isinstance(value, list)
        else value
    )


@pytest.mark.parametrize("table", ["v3", "v4"])
@pytest.mark.parametrize("case", CASES)
def test_what_we_write_is_what_james_wrote_column_by_column(stores, case, table):
    given = golden_row(case)
    rows = getattr(stores.tables, table)
    rows.insert_future(from_row(given)).result()
    name = f"{stores.settings.cassandra.keyspace}.{rows.table.cql}"
    read = (
        f"SELECT {', '.join(COLUMNS)} FROM {name} "
        "WHERE queuename = ? AND timerangestart = ? AND bucketid = ? AND enqueueid = ?"
    )
    key = [given[name] for name in COLUMNS[:4]]
    found = dict(
        zip(COLUMNS, stores.cassandra.execute(stores.cassandra.prepare(read), key)[0], strict=True)
    )
    empty = (
        {"attributes": {}, "perrecipientspecificheaders": [], "recipients": []}
        if table == "v3"
        else {}
    )  # null in V3: James reads it as empty, too
    assert {
        name: empty.get(name) if value is None else as_golden(value)
        for name, value in found.items()
    } == given


@pytest.mark.parametrize("table", ["v3", "v4"])
@pytest.mark.parametrize("case", CASES)
def test_what_james_wrote_is_what_we_read(stores, case, table):
    given = golden_row(case) | {"queuename": f"read-{case}"}
    rows = getattr(stores.tables, table)
    name = f"{stores.settings.cassandra.keyspace}.{rows.table.cql}"
    insert = stores.cassandra.prepare(
        f"INSERT INTO {name} ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    )
    stores.cassandra.execute(insert, [given[column] for column in COLUMNS])
    expected = from_row(given)
    assert rows.row(expected.queue, expected.partition, expected.enqueue_id) == expected
    assert list(to_row(expected)) == list(COLUMNS)


@pytest.mark.parametrize(
    ("name", "window"), [("tables", timedelta(hours=1)), ("v3-tables", timedelta(hours=1))]
)
def test_the_other_tables_are_read_as_james_left_them(stores, name, window):
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    keyspace, session = stores.settings.cassandra.keyspace, stores.cassandra
    for table in ("browseStart", "contentStart", "deletedMailsV2", "eventStore"):
        for row in golden.get(table, []):
            columns = {
                column: bound(cell["type"], cell["value"])
                for column, cell in row.items()
                if cell["value"] is not None
            }
            insert = session.prepare(
                f"INSERT INTO {keyspace}.{table} ({', '.join(columns)}) "
                f"VALUES ({', '.join('?' * len(columns))})"
            )
            session.execute(insert, list(columns.values()))
    queue = golden["browseStart"][0]["queuename"]["value"]
    for table, starts in (
        ("browseStart", stores.tables.browse_starts),
        ("contentStart", stores.tables.content_starts),
    ):
        for row in golden.get(table, []):
            assert starts.get(queue).value == bound("timestamp", row[table.lower()]["value"])
    marked = {UUID(row["enqueueid"]["value"]) for row in golden["deletedMailsV2"]}
    assert (
        marked_ids(stores.tables.deleted, queue)
        == stores.tables.deleted.marked(queue, marked)
        == marked
    )
    assert events.decode(
        stores.tables.event_store.events(CONFIGURATION_AGGREGATE)[-1][1]
    ) == ViewConfiguration(window)
