"""### Corrects the message counters of mailboxes that drifted

What a mail client shows as the number of messages and of unread ones is a Cassandra counter, to
which James adds with every message. A crash or time-out between message and counter leaves the two
apart, for good. This DAG counts the messages of every mailbox in `imapUidTable`, the truth,
compares this with `mailboxCounters`, and adds the difference where nothing moves. It also lists the
rows in which `messageIdTable` differs from the truth.

**Steps**

- `plan_counters`: Spark: one scan of the four tables, joined by mailbox; lists drifts, and rows in
  which the two message tables differ. Changes: nothing.
- `check_plan`: Great Expectations: the scan was whole, the lists add up; a failing one stops here.
  Changes: nothing.
- `apply_counters`: reads each drifted mailbox again, `settle` after the first read; claims it; one
  counter update. Changes: mailboxCounters, claims.
- `verify`: Great Expectations: every corrected counter is right, unless its mailbox moved since.
  Changes: nothing.
- `report`: ledger row, largest drifts before and after, a picture; runs also after a failure, and
  then fails the run. Changes: ledger.

**Dangers.** A counter update cannot be repeated: it is sent once, by this task's own process (never
by Spark, which may run a task twice), without the driver's retries, after a claim of run and
mailbox. When its outcome is not known the report says `unknown`, and this run never sends another.
Mailboxes in use, and those of which a replica is away, are skipped and counted; a later run finds
them. James' own recount (webadmin `RecomputeMailboxCounters`) must not run at the same time: it
subtracts and adds, and would add to what is being corrected here. Nobody's mail is touched, but by
`repair_projection`, which rewrites rows of `messageIdTable`.

**Params.** `settle`: time between the two reads that must agree. `mailboxes`, `users`: only these;
none = all. `trust_projection`: count `messageIdTable` instead, which is cheaper and sees no
inconsistency. `repair_projection`: also rewrite the rows of `messageIdTable` that the plan lists,
from the truth, each looked at again `settle` after the plan began; rows that were deleted from
there alone come back. `dry_run`: plan, check and report only. `max_share`: of all mailboxes, at
most, in one run that names none; 0.2 (MAILSLICE_DUTY_MAX_COUNTERS_SHARE). `unusual`: also far more
than the last runs corrected; needs a reason. `intensity`: how hard to lean on Cassandra. `reason`:
kept in the ledger.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`, without which its task waits for ever; and James' mailbox tables in
MAILSLICE_CASSANDRA_KEYSPACE: without them it refuses.

**Example**

```
airflow dags trigger counter_repair --conf '{"users": ["alice@example.com"], "dry_run": true}'
mailslice duty run counter_repair --settle 5m --json           # the same without Airflow
```
"""

from datetime import timedelta

from airflow.sdk import Asset, dag

from mailslice.airflow.task_chain import Tag, dag_arguments, one_chain, schedule_of
from mailslice.airflow.trigger_form import form_of

REPAIRED = Asset("counter_repair", uri="mailslice://mailboxes/counters")


@dag(
    dag_id="counter_repair",
    doc_md=__doc__,
    params=form_of("counter_repair"),
    schedule=schedule_of("15 3 * * 6"),
    **dag_arguments(tags=[Tag.MAIL_QUEUE], timeout=timedelta(hours=24)),
)
def counter_repair() -> None:
    """Plan, check, apply, verify, report: once, for all mailboxes."""
    one_chain("counter_repair", "counters", REPAIRED, apply_in_spark=False)


counter_repair()
