r"""### Empties what is done from the view of every mail queue

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

**Params.** `queues`: names, none = all. `dry_run`: plan, check and report only. `grace`: how long
after its end a slice counts as closed; keep it four times larger than the clocks differ. `reason`:
kept in the ledger. `max_share`: without effect. `unusual`: also far more rows than the last runs
deleted (10 times, and more than 100,000); needs a `reason`. `sweep`: also rows before contentStart
and marks without a row; it scans whole tables, and the scheduled run of each Sunday (UTC) does it
by itself, and after a Sunday that failed the next scheduled run. `aside`: with it, rows without a
mark that it finds there go into quarantine (`mailslice stuck list`). `restarted`: since when every
node of James, and every worker and `smtp-in` of mailslice, has today's slice window; until that is
said, slices close by the largest window there ever was. `rate`: partitions and marks a second, at
most, 0 = no limit. `intensity`: the share of the allowed rates, or of the time, that a run may
take.

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
process, all five steps of it, without Spark; the other tasks show what it did. Whoever clears one
of them has that step done anew.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`, without which its tasks wait for ever.

**Example**

```
airflow dags trigger queue_cleanup --conf '{"queues": ["spool"], "dry_run": true}'
mailslice duty run queue_cleanup --queue spool --dry-run       # the same without Airflow
```
"""

from datetime import timedelta

from airflow.sdk import Asset, dag

from mailslice.airflow.task_chain import Tag, dag_arguments, five_steps, list_queues, schedule_of
from mailslice.airflow.trigger_form import form_of

CLEANED = Asset("queue_cleanup", uri="mailslice://queue/cleanup")


@dag(
    dag_id="queue_cleanup",
    doc_md=__doc__,
    params=form_of("queue_cleanup"),
    schedule=schedule_of("15 2 * * *"),
    **dag_arguments(
        tags=[Tag.MAIL_QUEUE, Tag.DELETES], timeout=timedelta(hours=6), deadline=timedelta(hours=4)
    ),
)
def queue_cleanup() -> None:
    """Plan, check, apply, verify, report: for each queue."""
    five_steps("queue_cleanup", "cleanup", CLEANED).expand(queue=list_queues())


queue_cleanup()
