"""How fast mailboxes are counted and corrected: James' mailbox tables in a keyspace of the benchmark's own, filled evenly, with some drifts planted."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from mailslice.cli.bench_inserts import insert_all
from mailslice.cli.bench_spark import peak_memory
from mailslice.cli.door import who
from mailslice.model.clock import system_clock

if TYPE_CHECKING:
    from mailslice.model.settings import Settings
    from mailslice.stores import Stores

Say = Callable[[str], None]
KEYSPACE = "mailslice_bench_mailboxes"
_FLAGS = (
    "flaganswered",
    "flagdeleted",
    "flagdraft",
    "flagflagged",
    "flagrecent",
    "flagseen",
    "flaguser",
)
_MESSAGE = f"bodystartoctet int, {', '.join(f'{flag} boolean' for flag in _FLAGS)}, fullcontentoctets bigint, modseq bigint, userflags set<text>"
_TABLES = (
    "CREATE TABLE {}.mailbox (id timeuuid PRIMARY KEY, name text, uidvalidity bigint)",
    "CREATE TABLE {}.mailboxcounters (mailboxid timeuuid PRIMARY KEY, count counter, unseen counter)",
    f"CREATE TABLE {{}}.imapuidtable (messageid timeuuid, mailboxid timeuuid, uid bigint, {_MESSAGE}, PRIMARY KEY (messageid, mailboxid, uid))",
    f"CREATE TABLE {{}}.messageidtable (mailboxid timeuuid, uid bigint, messageid timeuuid, {_MESSAGE}, PRIMARY KEY (mailboxid, uid))",
)
_DRIFTED_ONE_IN = 50
_WITHOUT_PROJECTION = 10
_AT_ONCE = 20_000


def measure_counters(
    settings: Settings, *, mailboxes: int, messages: int, say: Say
) -> dict[str, Any]:
    """Fill, then a run that corrects (and starts Spark), and one that finds nothing. Rates a second, times in seconds, memory in MiB."""
    with _place(settings) as stores:
        say(f"{mailboxes} mailboxes with {messages} messages: inserting")
        begun = time.perf_counter()
        planted = _fill(stores, mailboxes, messages)
        filled = time.perf_counter() - begun
        say("the run that corrects")
        with peak_memory(settings) as peak:
            first = _run(stores.settings)
        say("the run that finds nothing")
        second = _run(stores.settings)
        found = (
            first["processedMailboxes"],
            first["messages"],
            first["wrong"],
            first["applied"],
            second["wrong"],
            sum(first["inconsistencies"].values()),
        )
        if found != (mailboxes, messages, planted, planted, 0, min(_WITHOUT_PROJECTION, messages)):
            raise RuntimeError(
                f"{mailboxes} mailboxes, {messages} messages, {planted} drifts were planted; the runs found {found}: {first['message']}"
            )
    plan, again, apply = (
        first["seconds"]["plan"],
        second["seconds"]["plan"],
        first["seconds"]["apply"],
    )
    return {
        "mailboxes": mailboxes,
        "messages": messages,
        "drifted": planted,
        "fill_rate": round(messages / filled),
        "step_seconds": first["seconds"],
        "plan_messages_per_second": round(messages / plan),
        "plan_again_messages_per_second": round(messages / again),
        "plan_again_mailboxes_per_second": round(mailboxes / again),
        "apply_mailboxes_per_second": round(planted / apply, 1) if apply else None,
        **peak.as_json(),
    }


@contextmanager
def _place(settings: Settings) -> Iterator[Stores]:
    """Two keyspaces and an artifacts folder that nobody else uses, removed afterwards."""
    from mailslice.stores import open_stores

    with tempfile.TemporaryDirectory(prefix="mailslice-bench-") as folder:
        changed = {
            "cassandra": settings.cassandra.model_copy(update={"keyspace": KEYSPACE}),
            "own": settings.own.model_copy(update={"keyspace": f"{KEYSPACE}_own"}),
            "duty": settings.duty.model_copy(update={"artifacts": folder}),
        }
        with open_stores(settings.model_copy(update=changed)) as stores:
            _drop(stores)
            stores.cassandra.execute(
                f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            )
            try:
                for statement in _TABLES:
                    stores.cassandra.execute(statement.format(KEYSPACE))
                yield stores
            finally:
                _drop(stores)


def _drop(stores: Stores) -> None:
    for keyspace in (KEYSPACE, f"{KEYSPACE}_own"):
        stores.cassandra.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")


def _run(settings: Settings) -> dict[str, Any]:
    from mailslice.duty.request import NO_QUEUE, RunRequest, new_run
    from mailslice.duty.road import run_all

    request = RunRequest(
        "counter_repair",
        NO_QUEUE,
        new_run(system_clock),
        None,
        who(),
        {"settle": "1ms", "reason": "mailslice bench"},
    )
    return run_all(request, settings)


def _fill(stores: Stores, mailboxes: int, messages: int) -> int:
    """Messages dealt evenly, every third one seen; one mailbox in fifty shows one message too many. Gives how many drifted."""
    session = stores.cassandra
    ids = [uuid.uuid1() for _ in range(mailboxes)]
    columns = (
        f"messageid, mailboxid, uid, modseq, {', '.join(_FLAGS)}, bodystartoctet, fullcontentoctets"
    )
    marks = ", ".join("?" * (columns.count(",") + 1))
    truth, projection = (
        f"INSERT INTO {KEYSPACE}.{table} ({columns}) VALUES ({marks})"
        for table in ("imapuidtable", "messageidtable")
    )
    insert_all(
        session,
        f"INSERT INTO {KEYSPACE}.mailbox (id, name, uidvalidity) VALUES (?, 'INBOX', 1)",
        ([each] for each in ids),
    )
    unseen, drifted = [0] * mailboxes, set(range(0, mailboxes, _DRIFTED_ONE_IN))

    def rows() -> Iterator[tuple[object, ...]]:
        for number in range(messages):
            place, seen = number % mailboxes, number % 3 == 0
            unseen[place] += not seen
            yield (
                uuid.uuid1(),
                ids[place],
                number // mailboxes + 1,
                number + 1,
                *(flag == "flagseen" and seen for flag in _FLAGS),
                100,
                4000,
            )

    made, first = rows(), True
    while some := list(islice(made, _AT_ONCE)):
        insert_all(session, truth, some)
        insert_all(session, projection, some[_WITHOUT_PROJECTION if first else 0 :])
        first = False
    update = session.prepare(
        f"UPDATE {KEYSPACE}.mailboxcounters SET count = count + ?, unseen = unseen + ? WHERE mailboxid = ?",
        idempotent=False,
    )
    counts = (
        (
            messages // mailboxes + (place < messages % mailboxes) + (place in drifted),
            unseen[place],
            ids[place],
        )
        for place in range(mailboxes)
    )
    session.run_many(update, counts)
    return len(drifted)
