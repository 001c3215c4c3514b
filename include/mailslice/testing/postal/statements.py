"""Statements that several parts of Postal issue alike."""

from __future__ import annotations

from datetime import UTC, datetime

import pymysql

from mailslice.testing.postal.databases import SqlSession

STATISTICS = ("hourly", "daily", "monthly", "yearly")
_COUNTERS = ("incoming", "outgoing", "spam", "bounces", "held")


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


def utc_now() -> datetime:
    """UTC by this host's clock, naive: what a worker writes."""
    return datetime.now(UTC).replace(tzinfo=None)
