r"""### Deletes the rows of finished mails from the view of every mail queue

James marks a mail as deleted when it is done and leaves its row where it was: `browse` and `size`
read every dead row again, for ever. This DAG finds the slices that are over, proves which rows in
them are dead, and deletes those, partition by partition. Then it moves `browseStart` and
`contentStart` forward, also when the queue is empty, and empties dead slices between live ones.

**Steps, for each queue by itself**

- `plan_cleanup`: Spark: counts live and dead rows of every closed slice, writes the plan and its
  digest. Changes: nothing.
- `check_plan`: Great Expectations over the plan; a failing one stops here and names itself.
  Changes: nothing.
- `apply_cleanup`: Spark: proves each slice again, deletes rows, then the marks that have a proof,
  moves both starts. Changes: rows, marks, starts.
- `verify`: Great Expectations over what is now in the stores. Changes: nothing.
- `report`: ledger row, report and Data Docs; runs also after a failure, and then fails the run.
  Changes: ledger.

**Dangers.** It deletes rows and marks of James' tables. It never deletes a row without a mark,
never passes a live mail, never moves a start back. Content of mails in S3 is not touched. A stuck
mail keeps `browseStart` where it is: the slices behind it are emptied all the same. A run that was
killed is finished by the next one.

**Grace.** Keep `grace` four times larger than the clocks differ.

**Sundays.** The scheduled run of each Sunday (UTC) sweeps by itself, and after a Sunday that failed
the next scheduled run. Of several runs of a Sunday the first that succeeds is enough.

**Backfill** holds a run to the slices that start in its data interval; the last interval is the one
that *starts* at or before `--to-date`. A run over a clean range reports that. Backfills ignore
the DAG's `max_active_runs`; pass `--max-active-runs 1`, or runs block on the queue's lock:

```
airflow backfill create --dag-id queue_cleanup --max-active-runs 1 \
  --from-date 2026-11-01 --to-date 2026-11-07
```

**Late.** A run that has not ended four hours after it was queued is reported
(MAILSLICE_DUTY_NOTIFY) and goes on; after six hours Airflow ends it.

**Small** work (MAILSLICE_DUTY_SMALL_ROWS rows at most) is done by the plan's task in its own
process, all five steps of it, without Spark; the other tasks show what it did. Clearing one of
them runs its step again.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`, without which its tasks wait for ever. The DAG settings may name others.

**Example**

```
airflow dags trigger queue_cleanup --conf '{"queues": ["spool"]}'                     # a dry run
airflow dags trigger queue_cleanup --conf '{"queues": ["spool"], "dry_run": false}'
mailslice duty run queue_cleanup --queue spool --dry-run       # the same without Airflow
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "queue_cleanup",
    doc=__doc__,
    schedule="15 2 * * *",
    tags=[Tag.MAIL_QUEUE, Tag.DELETES],
    timeout=timedelta(hours=6),
    deadline=timedelta(hours=4),
)
def queue_cleanup(chain: Chain) -> None:
    """Plan, check, apply, verify, report: for each queue."""
    chain.five_steps("cleanup")
