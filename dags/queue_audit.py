"""### Says of every old mail where it is, daily

A mail that waits for hours is somewhere: in the work queue, in a delay level, in a worker's hands,
among the dead letters, in quarantine; or its message is gone, and nobody will ever deliver it. This
DAG gives each live mail that is older than a limit a verdict, and says why: waiting, delayed, held,
in flight, dead-lettered, lost, `lost or ghost`, ghost, bare (content missing), or unknown.

**Steps, for each queue by itself**

- `plan_audit`: Spark: finds the old live mails by two quorum reads; gathers the evidence; judges
  each mail. Changes: nothing, see dangers.
- `check_plan`: Great Expectations: every partition read once, one verdict a mail, none called lost
  without proof. Changes: nothing.
- `apply_audit`: publishes the counts as Prometheus text. Changes: artifacts.
- `verify`: Great Expectations over the verdicts' files, read back. Changes: nothing.
- `report`: ledger row and report; runs also after a failure, and then fails the run. Changes:
  ledger.

The evidence: RabbitMQ's figures, the workers' own records, the delays, the quarantine, a census of
the dead letters.

**Dangers.** None for mail. The dead letter queue is looked through by holding its messages for a
second. `census` holds the ready messages of the work queue, too, for 15 to 45 s (to 195 s where
MAILSLICE_WORKER_RECORD_EVERY is above 10s): workers get no mail of it meanwhile, and afterwards
each message is marked redelivered; nothing is lost, doubled or, on a classic queue, reordered, not
even when the run is killed. Quorum queues with a delivery limit are refused. Without a census
nothing is called lost.

**Intensity** has no meaning here: nothing is written to the stores. A dry run takes no census.

**Output.** `mailslice queue audit QUEUE` lists the mails of the last audit;
`metrics/mailslice-audit-QUEUE.prom` below MAILSLICE_ARTIFACTS.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`, without which its tasks wait for ever. The DAG settings may name others.

**Backfill** (`airflow backfill create ... --max-active-runs 1`) holds an audit to the mails of the
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
