"""### Corrects the message counters of mailboxes that drifted

A mail client shows the number of messages and of unread messages. These numbers are Cassandra
counters, to which James adds with every message. A crash or time-out between message and counter
makes the two differ for good. This DAG counts the messages of every mailbox in `imapUidTable`, the
source of truth, and compares them with `mailboxCounters`. It adds the difference for mailboxes that
nobody uses meanwhile. It also lists the rows in which `messageIdTable` differs from the truth.

**Steps**

- `plan_counters`: Spark: scans the four tables once and joins them by mailbox; lists drifts, and
  rows in which the two message tables differ. Changes: nothing.
- `check_plan`: Great Expectations: the scan was complete, the lists add up. A failure ends the run.
  Changes: nothing.
- `apply_counters`: reads each drifted mailbox again, `settle` after the first read; claims it;
  sends one counter update. Changes: mailboxCounters, claims.
- `verify`: Great Expectations: every corrected counter is right, unless its mailbox changed since.
  Changes: nothing.
- `report`: ledger row, largest drifts before and after, a picture. It runs after a failure, too,
  and then fails the run. Changes: ledger.

**Dangers.** A counter update cannot be repeated. So this task's own process sends it, once, after a
claim of run and mailbox, and without the driver's retries. Spark never sends it, because Spark may
run a task twice. If the outcome is not known, the report says `unknown`, and this run never sends
another update of that mailbox. Mailboxes in use, and mailboxes of which a replica is away, are
skipped and counted; a later run corrects them. Never run James' own recount (webadmin
`RecomputeMailboxCounters`) at the same time: both would add the same difference. No message is
touched, except that `repair_projection` rewrites rows of `messageIdTable`.

**Projection.** `repair_projection` reads each row again, `settle` after the plan began. Rows that
were deleted from `messageIdTable` alone come back.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`. Without the pool its task waits for ever. It refuses to run without James' mailbox
tables in MAILSLICE_CASSANDRA_KEYSPACE.

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
