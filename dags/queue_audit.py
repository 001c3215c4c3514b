"""### Gives every old mail a verdict: where it is, or that it is lost

A mail that waits for hours is in the work queue, in a delay level, with a worker, among the dead
letters or in quarantine. Or its message is gone, and nobody will ever deliver it. This DAG gives
each live mail that is older than a limit a verdict, and the reason for it. The verdicts are
waiting, delayed, held, in flight, dead-lettered, lost, `lost or ghost`, ghost, bare (its content is
missing) and unknown. It runs daily.

**Steps, for each queue**

- `plan_audit`: Spark: finds the old live mails by two quorum reads, gathers the evidence, and gives
  each mail a verdict. Changes: nothing, see dangers.
- `check_plan`: Great Expectations: every partition was read once, each mail has one verdict, and no
  mail is called lost without proof. Changes: nothing.
- `apply_audit`: publishes the counts as Prometheus text. Changes: artifacts.
- `verify`: Great Expectations over the files of the verdicts, read back. Changes: nothing.
- `report`: ledger row and report. It runs after a failure, too, and then fails the run. Changes:
  ledger.

The evidence is RabbitMQ's figures, the workers' records, the delays, the quarantine and the dead
letters.

**Dangers.** None for mail. Each run takes the messages of the dead letter queue for about a second,
and returns them. With `census` it also takes the ready messages of the work queue, for 15 to 45 s
(up to 195 s where MAILSLICE_WORKER_RECORD_EVERY is above 10s). Workers get none of these messages
meanwhile. RabbitMQ marks the returned messages as redelivered. No message is lost or doubled, even
if the run is killed. A classic queue keeps its order. A census of a quorum queue with a delivery
limit is refused. Without a census no mail is called lost.

**Intensity** has no effect: nothing is written to the stores. A dry run takes no census.

**Output.** `mailslice queue audit QUEUE` lists the mails of the last audit. The counts are in
`metrics/mailslice-audit-QUEUE.prom` below MAILSLICE_ARTIFACTS.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`. Without the pool its tasks wait for ever. The DAG settings may name others.

**Backfill** (`airflow backfill create ... --max-active-runs 1`): each run audits the mails of the
slices that start in its data interval.

**Example**

```
airflow dags trigger queue_audit --conf '{"queues": ["spool"], "census": true, "reason": "restart"}'
mailslice duty run queue_audit --queue spool --census --json   # the same without Airflow
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "queue_audit",
    doc=__doc__,
    schedule="45 4 * * *",
    tags=[Tag.MAIL_QUEUE, Tag.READS],
    timeout=timedelta(hours=3),
    deadline=timedelta(hours=2),
)
def queue_audit(chain: Chain) -> None:
    """Plan, check, apply, verify, report: for each queue."""
    chain.five_steps("audit", apply_in_spark=False)
