"""The least privileges of a guest in Postal's databases."""

from __future__ import annotations

from collections.abc import Iterable

_STATISTICS = ("stats_hourly", "stats_daily", "stats_monthly", "stats_yearly")


def main_reads(main: str, user: str) -> list[str]:
    """Grants in the main database that are enough for a list and for mode shadow."""
    return [
        f"GRANT SELECT ON `{main}`.queued_messages TO {user}",
        f"GRANT SELECT (id) ON `{main}`.servers TO {user}",
        f"GRANT SELECT (id) ON `{main}`.ip_addresses TO {user}",
    ]


def main_writes(main: str, user: str) -> list[str]:
    """Additional grants that closing, retrying and releasing need."""
    return [
        (
            "GRANT INSERT, DELETE, UPDATE (locked_by, locked_at, retry_after, attempts) "
            f"ON `{main}`.queued_messages TO {user}"
        )
    ]


def server_reads(database: str, user: str) -> list[str]:
    """The only grant in a server's database that a list needs."""
    return [f"GRANT SELECT ON `{as_pattern(database)}`.* TO {user}"]


def server_writes(database: str, user: str) -> list[str]:
    """Grants that closing and retrying need in a server's database."""
    return [
        f"GRANT INSERT ON `{database}`.deliveries TO {user}",
        (
            "GRANT UPDATE (status, held, hold_expiry, last_delivery_attempt) "
            f"ON `{database}`.messages TO {user}"
        ),
        *(f"GRANT INSERT, UPDATE ON `{database}`.{table} TO {user}" for table in _STATISTICS),
    ]


def own_database(database: str, user: str) -> list[str]:
    """All grants in mailslice's own database, including CREATE."""
    return [f"GRANT ALL PRIVILEGES ON `{as_pattern(database)}`.* TO {user}"]


def least(main: str, servers: Iterable[str], user: str, own: str | None = None) -> list[str]:
    """All grants of one guest. `user` is quoted for SQL: 'name'@'host'."""
    return [
        *main_reads(main, user),
        *main_writes(main, user),
        *(grant for each in servers for grant in server_reads(each, user)),
        *(grant for each in servers for grant in server_writes(each, user)),
        *(own_database(own, user) if own else ()),
    ]


def as_pattern(database: str) -> str:
    """A database name escaped for GRANT, which takes a pattern with _ and %."""
    return database.replace("_", r"\_").replace("%", r"\%")
