r"""### Deletes the rows of finished mails from the view of every mail queue

James marks a finished mail as deleted, and leaves its row in place. Every `browse` and `size` then
reads the dead row again. This DAG finds the closed slices and proves which of their rows are dead.
It deletes these rows, partition by partition, also in dead slices between live ones. Then it moves
`browseStart` and `contentStart` forward, also on an empty queue.

**Steps, for each queue**

- `plan_cleanup`: Spark: counts live and dead rows of every closed slice, writes the plan and its
  digest. Changes: nothing.
- `check_plan`: Great Expectations over the plan. An expectation that fails ends the run, and the
  message names it. Changes: nothing.
- `apply_cleanup`: Spark: proves each slice again, deletes rows, then the marks that have a proof,
  moves both starts. Changes: rows, marks, starts.
- `verify`: Great Expectations over what is now in the stores. Changes: nothing.
- `report`: ledger row, report and Data Docs. It runs after a failure, too, and then fails the run.
  Changes: ledger.

**Dangers.** It deletes rows and marks of James' tables. It never deletes a row without a mark, and
never moves a start back or past a live mail. It does not touch content in S3. A stuck mail keeps
`browseStart` where it is; closed slices after it are emptied all the same. The next run finishes a
run that was killed. On a queue that James shares `apply_cleanup` may take the dead letters for a
moment, to read their ids; it returns all of them.

**Grace.** Keep `grace` at least four times as large as the clocks differ.

**Sundays.** The scheduled run of each Sunday (UTC) also sweeps. If it fails, the next scheduled run
sweeps. After the first success the other runs of that Sunday do not sweep.

**Backfill**: each run works on the slices that start in its data interval. The last interval is the
one that *starts* at or before `--to-date`. A run without dead rows in its range says so. Backfills
ignore the DAG's `max_active_runs`; pass `--max-active-runs 1`, or runs block on the queue's lock:

```
airflow backfill create --dag-id queue_cleanup --max-active-runs 1 \
  --from-date 2026-11-01 --to-date 2026-11-07
```

**Late.** A run that has not ended four hours after it was queued is reported
(MAILSLICE_DUTY_NOTIFY) and goes on. After six hours Airflow ends it.

**Small** work (at most MAILSLICE_DUTY_SMALL_ROWS rows): the plan's task does all five steps in its
own process, without Spark. The other tasks show what it did. If you clear one of them, it runs its
step again.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`. Without the pool its tasks wait for ever. The DAG settings may name others.

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
