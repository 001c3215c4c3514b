"""Statements that several parts of Postal issue."""

from __future__ import annotations

from datetime import UTC, datetime

import pymysql

from mailslice.testing.postal.databases import SqlSession

STATISTICS = ("hourly", "daily", "monthly", "yearly")
_COUNTERS = ("incoming", "outgoing", "spam", "bounces", "held")


def destroy(main: SqlSession, queued: int) -> None:
    """Deletes a row as Rails does: by its id only, and without an error if it is missing."""
    main.connection.begin()
    try:
        main.run("DELETE FROM queued_messages WHERE id = %s", queued)
    except pymysql.Error:
        main.connection.rollback()
        raise
    main.connection.commit()


def count(messages: SqlSession, database: str, counter: str, at: datetime) -> None:
    """Adds one to a counter in each of the four tables. `database` is quoted."""
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


def utc_now() -> datetime:
    """The UTC time of this host, naive, as a worker writes it."""
    return datetime.now(UTC).replace(tzinfo=None)
