"""### Measures every mail queue, every 15 minutes

It measures

- how many mails are live, and how many dead rows every browse reads;
- how old the oldest mail is, and how long mails of each recipient domain wait (as Postfix' `qshape`
  shows it);
- how many dead letters there are;
- whether the broker was seen empty, which lets a cleanup drop deleted marks.

**Steps, for each queue**

- `plan_size`: Spark: counts slice by slice. It asks the broker once, and again after 15 s if it was
  empty. Changes: nothing.
- `check_plan`: Great Expectations: every slice was read once. After a failure nothing is published.
  Changes: nothing.
- `apply_size`: publishes the Prometheus text, the picture of the slices, and the broker's sample.
  Changes: artifacts, own keyspace.
- `verify`: Great Expectations over what was published, read back. Changes: nothing.
- `report`: ledger row and report. It runs after a failure, too, and then fails the run. Changes:
  ledger.

**Dangers.** None for mail: it reads James' tables and writes none of them. It reads the rows of
live mails and never their content. It publishes domains and no addresses. It costs the broker a few
calls of the management API. It costs Cassandra the read of all rows from contentStart on, which are
few after a cleanup.

**Intensity** has no effect: nothing is written to James' stores.

**Output.** `metrics/mailslice-QUEUE.prom` below MAILSLICE_ARTIFACTS (point node_exporter's text
file collector at the folder), and `slices.svg` and JSON with each run. For queues named `postal` or
`audit-...` one letter of the file's name is quoted, because another duty has that name. An empty
queue has the value 0. An unknown value is left out.

**Small** work (at most MAILSLICE_DUTY_SMALL_ROWS rows): the plan's task does all five steps in its
own process, without Spark. The other tasks show what it did. If you clear one of them, it runs its
step again.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`. Without the pool its tasks wait for ever. The DAG settings may name others.

**Example**

```
airflow dags trigger queue_size --conf '{"queues": ["spool"]}'
mailslice duty run queue_size --queue spool --json             # the same without Airflow
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "queue_size",
    doc=__doc__,
    schedule="*/15 * * * *",
    tags=[Tag.MAIL_QUEUE, Tag.READS],
    timeout=timedelta(hours=1),
    deadline=timedelta(minutes=30),
)
def queue_size(chain: Chain) -> None:
    """Plan, check, apply, verify, report: for each queue."""
    chain.five_steps("size", apply_in_spark=False)
