"""Measures how fast counter_repair counts mailboxes of James and corrects planted drifts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from mailslice.bench.queues import insert_all
from mailslice.bench.spark_runs import own_stores, peak_memory, run_duty, timed
from mailslice.engine.spark_session import spark_session

if TYPE_CHECKING:
    from mailslice.model.settings import Settings
    from mailslice.stores import Stores

KEYSPACE = "mailslice_bench_mailboxes"
_FLAGS = ("answered", "deleted", "draft", "flagged", "recent", "seen", "user")
_MESSAGE = (
    f"bodystartoctet int, {', '.join(f'flag{flag} boolean' for flag in _FLAGS)}, "
    "fullcontentoctets bigint, modseq bigint, userflags set<text>"
)
_IDS = "messageid timeuuid, mailboxid timeuuid, uid bigint"
_TABLES = (
    "mailbox (id timeuuid PRIMARY KEY, name text, uidvalidity bigint)",
    "mailboxcounters (mailboxid timeuuid PRIMARY KEY, count counter, unseen counter)",
    f"imapuidtable ({_IDS}, {_MESSAGE}, PRIMARY KEY (messageid, mailboxid, uid))",
    f"messageidtable ({_IDS}, {_MESSAGE}, PRIMARY KEY (mailboxid, uid))",
)
_COLUMNS = (
    "messageid, mailboxid, uid, modseq, bodystartoctet, fullcontentoctets, "
    f"{', '.join(f'flag{flag}' for flag in _FLAGS)}"
)
_VALUES = ", ".join("?" * (_COLUMNS.count(",") + 1))
_DRIFTED_ONE_IN = 50
_WITHOUT_PROJECTION = 10
_AT_ONCE = 20_000


def measure_counters(
    settings: Settings, *, mailboxes: int, messages: int, print_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Fills tables of James, runs a repair that corrects them, then one that finds nothing.

    Rates a second, times in seconds, memory in MiB, CPU in microseconds a message. The rate of the
    first plan is given with and without the start of Spark.
    """
    with own_stores(settings, KEYSPACE) as stores:
        for table in _TABLES:
            stores.cassandra.execute(f"CREATE TABLE {KEYSPACE}.{table}")
        print_progress(f"{mailboxes} mailboxes with {messages} messages: inserting")
        planted, filled = timed(lambda: _fill(stores, mailboxes, messages))
        print_progress("the run that corrects")
        with peak_memory(settings) as peak:
            _, start = timed(lambda: spark_session(stores.settings, "mailslice bench"))
            correcting = run_duty(stores.settings, "counter_repair", settle="1ms")
        print_progress("the run that finds nothing")
        again = run_duty(stores.settings, "counter_repair", settle="1ms")
        first = correcting.report
        _require_planted(first, again.report, mailboxes, messages, planted)
    plan, replanned = first["seconds"]["plan"], again.report["seconds"]["plan"]
    apply = first["seconds"]["apply"]
    return {
        "mailboxes": mailboxes,
        "messages": messages,
        "drifted": planted,
        "fill_rate": round(messages / filled),
        "spark_start_seconds": round(start, 2),
        "step_seconds": first["seconds"],
        "plan_messages_per_second": round(messages / (start + plan)),
        "plan_after_start_messages_per_second": round(messages / plan),
        "plan_again_messages_per_second": round(messages / replanned),
        "plan_again_mailboxes_per_second": round(mailboxes / replanned),
        "plan_cpu": correcting.cpu.by_rows(messages, "plan")["plan"],
        "plan_again_cpu": again.cpu.by_rows(messages, "plan")["plan"],
        "apply_mailboxes_per_second": round(planted / apply, 1) if apply else None,
        **peak.as_json(),
    }


def _require_planted(
    first: dict[str, Any], second: dict[str, Any], mailboxes: int, messages: int, planted: int
) -> None:
    names = "processedMailboxes", "messages", "wrong", "applied"
    counted = (*(first[name] for name in names), second["wrong"])
    missing = sum(first["inconsistencies"].values())
    expected = (mailboxes, messages, planted, planted, 0)
    if counted != expected or missing != min(_WITHOUT_PROJECTION, messages):
        raise RuntimeError(
            f"{mailboxes} mailboxes, {messages} messages, {planted} drifts were planted; the runs "
            f"counted {counted}, {missing} without projection: {first['message']}"
        )


def _fill(stores: Stores, mailboxes: int, messages: int) -> int:
    """Spreads messages evenly; a third is seen. One mailbox in fifty counts one message too many.

    Returns how many mailboxes drifted.
    """
    session, ids = stores.cassandra, [uuid.uuid1() for _ in range(mailboxes)]
    insert = f"INSERT INTO {KEYSPACE}.{{}} ({_COLUMNS}) VALUES ({_VALUES})"
    mailbox = f"INSERT INTO {KEYSPACE}.mailbox (id, name, uidvalidity) VALUES (?, 'INBOX', 1)"
    insert_all(session, mailbox, ([mailbox_id] for mailbox_id in ids))
    unseen, drifted = [0] * mailboxes, set(range(0, mailboxes, _DRIFTED_ONE_IN))

    def rows() -> Iterator[tuple[object, ...]]:
        for number in range(messages):
            uid, mailbox = divmod(number, mailboxes)
            seen = number % 3 == 0
            unseen[mailbox] += not seen
            flags = (flag == "seen" and seen for flag in _FLAGS)
            yield (uuid.uuid1(), ids[mailbox], uid + 1, number + 1, 100, 4000, *flags)

    made, without = rows(), _WITHOUT_PROJECTION
    while chunk := list(islice(made, _AT_ONCE)):
        insert_all(session, insert.format("imapuidtable"), chunk)
        insert_all(session, insert.format("messageidtable"), chunk[without:])
        without = 0
    update = session.prepare(
        f"UPDATE {KEYSPACE}.mailboxcounters SET count = count + ?, unseen = unseen + ? "
        "WHERE mailboxid = ?",
        idempotent=False,
    )
    per_mailbox, more = divmod(messages, mailboxes)
    counts = (
        (per_mailbox + (number < more) + (number in drifted), unseen[number], ids[number])
        for number in range(mailboxes)
    )
    session.run_many(update, counts)
    return len(drifted)
