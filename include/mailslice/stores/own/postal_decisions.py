"""postal_decisions: the log of decisions on stuck messages of a Postal, with who and why."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from mailslice.stores.own.codec import RowCodec
from mailslice.stores.own.days import day_of
from mailslice.stores.own.records import Records, TableShape


@dataclass(frozen=True, slots=True)
class PostalDecision:
    """A decision on a row locked for `age`, judged `verdict`; its delivery record has `log_id`."""

    server: int
    message: int
    queued_message: int
    holder: str
    age: timedelta
    stage: str
    verdict: str
    action: str
    why: str
    decided: datetime
    log_id: str
    who: str = "unknown"
    run: str = ""


_ROWS = RowCodec(PostalDecision, age="age_ms")
POSTAL_DECISIONS = TableShape(
    "postal_decisions",
    {"day": "text", **_ROWS.types},
    partition=("day",),
    clustering=("decided", "log_id", "action"),
    newest_first=True,
)


class PostalDecisions:
    """The decisions, a partition a day (UTC)."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def save(self, row: PostalDecision, ttl: timedelta) -> None:
        """Writes the row; a repeat changes nothing. Beyond five years, `ttl` means no expiry."""
        self._records.put({"day": day_of(row.decided), **_ROWS.mapping(row)}, ttl)

    def list(self, since: datetime, until: datetime) -> Iterator[PostalDecision]:
        """The decisions from `since` to `until`, newest first. Reads all partition keys."""
        days = {row["day"] for row in self._records.partitions()}
        for day in sorted(days, reverse=True):
            if day_of(since) <= day <= day_of(until):
                rows = map(_ROWS.of_mapping, self._records.rows({"day": day}))
                yield from (row for row in rows if since <= row.decided <= until)
