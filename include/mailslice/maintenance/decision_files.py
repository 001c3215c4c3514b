"""Decisions of people: who did what to which mails, when and why. Each is a JSON file.

`decisions/DAY/TIME-RANDOM.json` below the artifacts, days and times in UTC
(`write_decision`). What duties and workers decide about single mails is in the table
`decisions` (`stores.cassandra.own.decisions`).
"""

import json
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from mailslice.maintenance.artifacts import Artifacts, artifacts, iso, json_value
from mailslice.model.errors import MailsliceError
from mailslice.model.settings import Settings
from mailslice.stores.own.days import day_of

log = logging.getLogger(__name__)
DECISIONS_FOLDER = "decisions"
SHOWN_IDS = 100
"""The most mail ids that one decision lists."""


def write_decision(
    settings: Settings,
    now: datetime,
    *,
    who: str,
    action: str,
    queue: str | None,
    reason: str | None,
    facts: Mapping[str, object],
) -> None:
    """Record who did what and why. The action is done: a failed write is only logged."""
    fields = {"who": who, "action": action, "queue": queue, "reason": reason}
    try:
        save_decision(settings, now, {**fields, **facts})
    except MailsliceError as error:
        log.warning("%s was done, but not recorded: %s", action, error)


def save_decision(settings: Settings, now: datetime, about: Mapping[str, object]) -> None:
    """Write one decision, for an action that needs its record first. Raises StoreUnavailable."""
    text = json.dumps({"time": iso(now), **about}, default=json_value).encode() + b"\n"
    name = f"{DECISIONS_FOLDER}/{now:%Y-%m-%d}/{now:%H%M%S}-{secrets.token_hex(4)}.json"
    artifacts(settings).write(name, text)


def written_decisions(
    artifacts: Artifacts, since: datetime, until: datetime
) -> Iterator[tuple[datetime, Mapping[str, Any]]]:
    """Decisions with their times, newest first. Leaves out other files. Raises StoreUnavailable."""
    first, last = day_of(since), day_of(until)
    days = [day for day in artifacts.folders(DECISIONS_FOLDER) if first <= day <= last]
    for day in reversed(days):
        of_day = (_read(artifacts, name) for name in artifacts.files(f"{DECISIONS_FOLDER}/{day}"))
        in_time = [pair for pair in of_day if pair is not None and since <= pair[0] <= until]
        yield from sorted(in_time, key=lambda pair: pair[0], reverse=True)


def _read(artifacts: Artifacts, name: str) -> tuple[datetime, Mapping[str, Any]] | None:
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        decision = json.loads(artifacts.read(name) or b"")
        at = datetime.fromisoformat(decision["time"])
        return at if at.tzinfo else at.replace(tzinfo=UTC), decision
    log.warning("%s is no decision and is left out", artifacts.uri(name))
    return None
