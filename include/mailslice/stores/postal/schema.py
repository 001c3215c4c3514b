"""The tables and columns of Postal that mailslice relies on: the same from 2.0 to 3.3.

A SELECT that reads no row checks them: its error tells a missing table from a missing right.
information_schema cannot, because it hides objects without a right.
"""

from collections.abc import Iterator, Mapping

from mailslice.model.errors import Refused
from mailslice.stores.mariadb.client import MariaDb, quoted
from mailslice.stores.mariadb.failures import NoSuchObject
from mailslice.stores.postal.rows import QUEUE_COLUMNS

Tables = Mapping[str, tuple[str, ...]]
STATISTICS = ("stats_hourly", "stats_daily", "stats_monthly", "stats_yearly")
COUNTERS = ("incoming", "outgoing", "spam", "bounces", "held")
"""Columns of the statistics."""

MAIN: Tables = {"queued_messages": QUEUE_COLUMNS, "servers": ("id",), "ip_addresses": ("id",)}
MESSAGES: Tables = {
    "messages": tuple(
        """
        id scope rcpt_to mail_from status held hold_expiry last_delivery_attempt inspected raw_table
        raw_headers_id raw_body_id
        """.split()
    ),
    "deliveries": tuple(
        "id message_id status code output details sent_with_ssl log_id timestamp time".split()
    ),
    **dict.fromkeys(STATISTICS, ("time", *COUNTERS)),
}


class SchemaDiffers(Refused):
    """A database is none of Postal 2.0 to 3.3: it lacks a table or column that mailslice needs."""


def check_main(db: MariaDb) -> None:
    """Raises SchemaDiffers naming all that is missing; NoRight if the user may not read them."""
    if missing := [*_missing(db, MAIN, db.url.database)]:
        raise _differs(db, db.url.database, missing)


def check_messages(db: MariaDb, database: str) -> None:
    """As `check_main`, for a message database. NoSuchObject: it lacks a table, as in a restore."""
    missing = [*_missing(db, MESSAGES, database)]
    if tables := [name for name in missing if "." not in name]:
        raise NoSuchObject(f"{database} at {db.address} has no table {', '.join(tables)}")
    if missing:
        raise _differs(db, database, missing)


def _differs(db: MariaDb, where: str, missing: list[str]) -> SchemaDiffers:
    return SchemaDiffers(
        f"{where} at {db.address} is none of Postal 2.0 to 3.3: it has no {', '.join(missing)}"
    )


def _missing(db: MariaDb, tables: Tables, database: str) -> Iterator[str]:
    """The names of missing objects: TABLE or TABLE.COLUMN."""
    for name, columns in tables.items():
        table = quoted(database, name)
        if _answers(db, f"SELECT {', '.join(map(quoted, columns))} FROM {table} LIMIT 0"):
            continue
        checks = {column: f"SELECT {quoted(column)} FROM {table} LIMIT 0" for column in columns}
        lacking = [column for column, sql in checks.items() if not _answers(db, sql)]
        if len(lacking) == len(columns):
            yield name
        else:
            yield from (f"{name}.{column}" for column in lacking)


def _answers(db: MariaDb, sql: str) -> bool:
    try:
        db.rows(sql)
    except NoSuchObject:
        return False
    return True
