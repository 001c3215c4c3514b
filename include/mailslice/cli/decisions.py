"""`mailslice decisions`: who did what to which mails, and why."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

from mailslice.cli.arguments import moment, option, queue_option
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.queue_session import open_stores
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.decision_files import written_decisions
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName
from mailslice.stores import Stores

if TYPE_CHECKING:
    from mailslice.stores.cassandra.own import DecisionRow

app = group("Decisions: who did what to which mails, and why.")
_COLUMNS = ("time", "queue", "action", "who", "reason", "mails", "enqueueId", "name")
_LAST = timedelta(days=7)
_FEW_DAYS = timedelta(days=100)
"""Up to so many each is read, whether it has decisions or not."""
_COUNTED = (
    *("retried", "moved", "delayed", "undeleted", "released", "discarded", "deleted", "flushed"),
    *("enqueued", "handled", "mails", "republished"),
)
"""How many mails a decision was about: the first of these facts that it has."""
_OF_HOLDS = frozenset({"queue hold", "queue release"})
"""Their counts are of holds, not of mails."""
_ABOUT = frozenset({"time", "who", "action", "queue", "reason"})


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

    Deletions, clears, moves, retries, releases and so on; what is known of each is in 'facts'.
    """
    now = system_clock()
    last = until or now
    first = since or (last if last.year < 1970 else min(last, now) - _LAST)
    if first > last:
        raise BadInput(f"--since {first:%Y-%m-%dT%H:%M:%SZ} is after --until or now")
    with open_stores() as stores:
        found = heapq.merge(
            _of_people(stores, queue, first, last),
            _of_duties(stores, queue, first, last),
            key=lambda one: one[0],
            reverse=True,
        )
        out.rows((line for _, line in found), _COLUMNS, empty="no decision in that time")


Line = tuple[datetime, dict[str, object]]


def _of_people(
    stores: Stores, queue: str | None, since: datetime, until: datetime
) -> Iterator[Line]:
    for at, decision in written_decisions(artifacts(stores.settings), since, until):
        if queue is not None and decision.get("queue") != queue:
            continue
        names = () if decision.get("action") in _OF_HOLDS else _COUNTED
        counts = (decision[name] for name in names if isinstance(decision.get(name), int))
        line = {
            "time": at,
            **{name: decision.get(name) for name in ("queue", "action", "who", "reason")},
            "mails": next(counts, None),
            "enqueueId": decision.get("mail"),
            **{name: decision.get(name) for name in ("name", "run")},
            "by": "a person",
            "facts": {name: value for name, value in decision.items() if name not in _ABOUT},
        }
        yield at, line


def _of_duties(
    stores: Stores, queue: QueueName | None, since: datetime, until: datetime
) -> Iterator[Line]:
    from mailslice.stores.cassandra.own import Decisions

    table = Decisions.existing(stores.cassandra, stores.settings)
    if table is None:
        return
    days: Mapping[QueueName, Sequence[str] | None]
    # Of the days from 0001 to 2099 few have decisions: a scan of their names finds which.
    few = until - since <= _FEW_DAYS
    days = {queue: None} if queue is not None and few else table.days(since, until)
    lines = [
        map(partial(_of_row, name), table.list(name, since, until, of))
        for name, of in sorted(days.items())
        if queue in {None, name}
    ]
    yield from heapq.merge(*lines, key=lambda one: one[0], reverse=True)


def _of_row(queue: QueueName, row: "DecisionRow") -> Line:
    return row.decided, {
        "time": row.decided,
        "queue": queue,
        "action": row.action,
        "who": row.who,
        "reason": row.why,
        "mails": 1,
        "enqueueId": row.enqueue_id,
        "name": row.name,
        "run": row.run or None,
        "by": row.verdict,
        "facts": {"stage": row.stage, "worker": row.worker, "age": row.age, "attempt": row.attempt},
    }
