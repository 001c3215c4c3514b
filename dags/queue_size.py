"""### Measures every mail queue, every 15 minutes

How many mails are live, how many dead rows are read over again by every browse, how old the oldest
mail is, which recipient domains wait how long (as Postfix' `qshape` draws it), how many messages
are dead letters, and whether the broker was seen empty, which is what lets a cleanup drop deleted
marks.

**Steps, for each queue by itself**

- `plan_size`: Spark: counts slice by slice; looks at the broker once, and again after 15 s when it
  was empty. Changes: nothing.
- `check_plan`: Great Expectations: every slice read once; a failing one publishes nothing.
  Changes: nothing.
- `apply_size`: publishes the Prometheus text, the picture of the slices, and the broker's sample.
  Changes: artifacts, own keyspace.
- `verify`: Great Expectations over what was published, read back. Changes: nothing.
- `report`: ledger row and report; runs also after a failure, and then fails the run. Changes:
  ledger.

**Dangers.** None for mail: it reads James' tables and writes none of them. Of live mails it reads
the row, never the content; addresses leave it as domains only. It costs the broker a few calls of
the management API, and Cassandra the read of all rows from contentStart on: after a cleanup that is
little.

**Intensity** has no meaning here: there is nothing to slow down.

**Output.** `metrics/mailslice-QUEUE.prom` below MAILSLICE_ARTIFACTS (point node_exporter's text
file collector at the folder), `slices.svg` and JSON with each run. Of queues named `postal` or
`audit-...` a letter of the file's name is quoted, as that name is another duty's. An empty queue
says 0; what is unknown is left out.

**Small** work (MAILSLICE_DUTY_SMALL_ROWS rows at most) is done by the plan's task in its own
process, all five steps of it, without Spark; the other tasks show what it did. Clearing one of
them runs its step again.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`, without which its tasks wait for ever. The DAG settings may name others.

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
