"""Tests the grants of docs/postal.md by a SELECT without rows, or an EXPLAIN of a change."""

from collections.abc import Iterator
from dataclasses import dataclass

from mailslice.stores.mariadb.client import MariaDb, quoted
from mailslice.stores.mariadb.failures import NoRight, NoSuchObject
from mailslice.stores.postal.schema import STATISTICS

_SELECTS = {"queued_messages": "", "servers": "id", "ip_addresses": "id"}
"""Table -> the columns that mailslice reads; empty: all of them."""
_OF_QUEUE = "locked_by, locked_at, retry_after, attempts"
_OF_MESSAGE = "status, held, hold_expiry, last_delivery_attempt"
_NO_TABLE = "mailslice-has-no-such-table"


@dataclass(frozen=True, slots=True)
class PostalRight:
    """`grant`: the text between GRANT and TO. `changes`: only needed to change something."""

    grant: str
    statement: str
    changes: bool = False


def rights_of_main(database: str) -> Iterator[PostalRight]:
    for table, columns in _SELECTS.items():
        name = quoted(database, table)
        grant = f"SELECT ({columns}) ON {name}" if columns else f"SELECT ON {name}"
        yield PostalRight(grant, f"SELECT {columns or '*'} FROM {name} LIMIT 0")
    queue = quoted(database, "queued_messages")
    yield _insert(queue, "domain")
    yield PostalRight(f"DELETE ON {queue}", f"EXPLAIN DELETE FROM {queue} WHERE 1 = 0", True)
    yield _update(queue, _OF_QUEUE, f" ({_OF_QUEUE})")


def rights_of_server(database: str) -> Iterator[PostalRight]:
    # Raw tables come and go. A user who may read every table gets "no such table" for this one.
    missing = f"SELECT 1 FROM {quoted(database, _NO_TABLE)} LIMIT 0"
    yield PostalRight(f"SELECT ON {quoted(database)}.*", missing)
    yield _insert(quoted(database, "deliveries"), "status")
    yield _update(quoted(database, "messages"), _OF_MESSAGE, f" ({_OF_MESSAGE})")
    for table in STATISTICS:
        yield _insert(quoted(database, table), "held")
        yield _update(quoted(database, table), "held")


def has_right(db: MariaDb, right: PostalRight) -> bool:
    """Whether the user has the right. A missing table does not count as a missing right."""
    try:
        db.rows(right.statement)
    except (NoRight, NoSuchObject) as error:
        return isinstance(error, NoSuchObject)
    return True


def _insert(table: str, column: str) -> PostalRight:
    statement = f"EXPLAIN INSERT INTO {table} ({column}) SELECT NULL FROM DUAL WHERE 1 = 0"
    return PostalRight(f"INSERT ON {table}", statement, changes=True)


def _update(table: str, columns: str, granted: str = "") -> PostalRight:
    values = ", ".join(f"{name} = NULL" for name in columns.split(", "))
    statement = f"EXPLAIN UPDATE {table} SET {values} WHERE 1 = 0"
    return PostalRight(f"UPDATE{granted} ON {table}", statement, changes=True)
