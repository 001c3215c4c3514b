"""`mailslice decisions`: who did what to which mails, and why."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic.alias_generators import to_camel

from mailslice.cli.arguments import moment, option, queue_option
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.queue_session import open_stores
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.decision_files import written_decisions
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.stores import Stores, has_cassandra
from mailslice.stores.own.postal_decisions import POSTAL_DECISIONS, PostalDecision, PostalDecisions

if TYPE_CHECKING:
    from mailslice.stores.cassandra.own import DecisionRow

app = group("Decisions: who did what to which mails, and why.")
_COLUMNS = ("time", "queue", "action", "who", "reason", "mails", "enqueueId", "name")
_DEFAULT_SPAN = timedelta(days=7)
_SHORT_SPAN = timedelta(days=100)
"""A span up to this length reads the partition of each day, empty or not."""
_MAIL_COUNTS = (
    *("retried", "moved", "delayed", "undeleted", "released", "discarded", "deleted", "flushed"),
    *("enqueued", "handled", "mails", "republished"),
)
"""Facts that count mails. The first one that a decision has is its number of mails."""
_HOLD_ACTIONS = frozenset({"queue hold", "queue release"})
"""Actions whose counts are of holds, not of mails."""
_OWN_COLUMNS = frozenset({"time", "who", "action", "queue", "reason"})


@command(app, "list")
def list_(
    out: Output,
    *,
    queue: Annotated[
        QueueName | None, queue_option("Of this queue only; of all, and of none, when not given.")
    ] = None,
    since: Annotated[
        datetime | None,
        option(
            "--since TIME",
            "From then on: a time, or 2h, 30d ago. Default: 7d before --until, or now.",
            moment,
        ),
    ] = None,
    until: Annotated[
        datetime | None, option("--until TIME", "Up to then: a time, or 2h, 30d ago.", moment)
    ] = None,
) -> None:
    """Decisions of people, duties and workers about mails, newest first.

    Deletions, clears, moves, retries, releases and so on. The details of each are in 'facts'.
    """
    now = system_clock()
    last = until or now
    first = since or (last if last.year < 1970 else min(last, now) - _DEFAULT_SPAN)
    if first > last:
        raise BadInput(f"--since {first:%Y-%m-%dT%H:%M:%SZ} is after --until or now")
    with open_stores() as stores:
        streams = [_by_people(stores, queue, first, last)]
        if has_cassandra(stores.settings):
            streams.append(_by_duties(stores, queue, first, last))
        if stores.settings.postal.url is not None and queue is None:
            streams.append(_of_postal(stores, first, last))
        decisions = heapq.merge(*streams, key=lambda line: line[0], reverse=True)
        out.rows((line for _, line in decisions), _COLUMNS, empty="no decision in that time")


Line = tuple[datetime, dict[str, object]]


def _by_people(
    stores: Stores, queue: str | None, since: datetime, until: datetime
) -> Iterator[Line]:
    for at, decision in written_decisions(artifacts(stores.settings), since, until):
        if queue is not None and decision.get("queue") != queue:
            continue
        names = () if decision.get("action") in _HOLD_ACTIONS else _MAIL_COUNTS
        counts = (decision[name] for name in names if isinstance(decision.get(name), int))
        line = {
            "time": at,
            **{name: decision.get(name) for name in ("queue", "action", "who", "reason")},
            "mails": next(counts, None),
            "enqueueId": decision.get("mail"),
            **{name: decision.get(name) for name in ("name", "run")},
            "by": "a person",
            "facts": {name: value for name, value in decision.items() if name not in _OWN_COLUMNS},
        }
        yield at, line


def _by_duties(
    stores: Stores, queue: QueueName | None, since: datetime, until: datetime
) -> Iterator[Line]:
    from mailslice.stores.cassandra.own import Decisions

    table = Decisions.existing(stores.cassandra, stores.settings)
    if table is None:
        return
    days: Mapping[QueueName, Sequence[str] | None]
    # Of the days from 0001 to 2099 few have decisions: a scan of all partition keys finds them.
    is_short = until - since <= _SHORT_SPAN
    days = {queue: None} if queue is not None and is_short else table.days(since, until)
    lines = [
        map(partial(_line_of_row, name), table.list(name, since, until, dates))
        for name, dates in sorted(days.items())
        if queue in {None, name}
    ]
    yield from heapq.merge(*lines, key=lambda line: line[0], reverse=True)


def _of_postal(stores: Stores, since: datetime, until: datetime) -> Iterator[Line]:
    """Decisions about messages of Postal, which are in no mail queue."""
    records = stores.existing_records(POSTAL_DECISIONS)
    rows = PostalDecisions(records).list(since, until) if records is not None else ()
    return map(partial(_line_of_row, None), rows)


def _line_of_row(queue: QueueName | None, row: "DecisionRow | PostalDecision") -> Line:
    facts = {to_camel(name): value for name, value in asdict(row).items()}
    return row.decided, {
        "time": facts.pop("decided"),
        "queue": queue,
        "action": facts.pop("action"),
        "who": facts.pop("who"),
        "reason": facts.pop("why"),
        "mails": 1,
        "enqueueId": facts.pop("enqueueId", None),
        "name": facts.pop("name", None),
        "run": facts.pop("run") or None,
        "by": facts.pop("verdict"),
        "facts": facts,
    }
