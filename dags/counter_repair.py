"""### Corrects the message counters of mailboxes that drifted

What a mail client shows as the number of messages and of unread ones is a Cassandra counter, to
which James adds with every message. A crash or time-out between message and counter leaves the two
apart, for good. This DAG counts the messages of every mailbox in `imapUidTable`, the truth,
compares this with `mailboxCounters`, and adds the difference for mailboxes that are not in use. It
also lists the rows in which `messageIdTable` differs from the truth.

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

**Projection.** `repair_projection` looks at each row again `settle` after the plan began. Rows that
were deleted from `messageIdTable` alone come back.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`, without which its task waits for ever; and James' mailbox tables in
MAILSLICE_CASSANDRA_KEYSPACE: without them it refuses.

**Example**

```
airflow dags trigger counter_repair --conf '{"users": ["alice@example.com"]}'   # a dry run
mailslice duty run counter_repair --settle 5m --json           # the same without Airflow
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "counter_repair",
    doc=__doc__,
    schedule="15 3 * * 6",
    tags=[Tag.MAIL_QUEUE],
    timeout=timedelta(hours=24),
    deadline=timedelta(hours=12),
)
def counter_repair(chain: Chain) -> None:
    """Plan, check, apply, verify, report: once, for all mailboxes."""
    chain.one_chain("counters", apply_in_spark=False)
