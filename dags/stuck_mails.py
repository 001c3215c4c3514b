"""### Finds mails whose worker hangs, every 5 minutes

A handler that never returns holds its mail for ever: the broker counts one unacknowledged message
and cannot say which, or since when. Each worker therefore writes down every few seconds what it
holds. This DAG reads those records, and only them: it scans no view and slows no worker.

**Steps, for each queue by itself**

- `plan_stuck`: reads the workers' records, waits until each worker has spoken again or is known to
  be dead, lists what is held too long. Changes: nothing.
- `check_plan`: Great Expectations, over the plan's rows: every mail once, over the time-out, with a
  worker of this queue; not too many of them. Changes: nothing.
- `apply_stuck`: looks again; notes, closes, or recovers each mail; discards the records of dead
  workers. Changes: quarantine, marks; by mode the work queue.
- `verify`: Great Expectations, over what the stores say of each mail: decisions written, closed
  mails marked, and whole in quarantine. Changes: nothing.
- `report`: ledger row and report; runs also after a failure, and then fails the run. Changes:
  ledger.

**Lock timeout.** 10 times the p99 processing time of the queue, and at least 10 minutes
(MAILSLICE_DUTY_STUCK_FACTOR, MAILSLICE_DUTY_STUCK_AT_LEAST). The report shows both and what came of
them. Only mails in a handler count; those that wait for one do not.

**Modes** (MAILSLICE_DUTY_STUCK_MODE, `close` when not set): a stuck mail

- `shadow`: is left alone; what `close` (or `recover`, where stage marks are on) would do is written
  down.
- `close`: is copied to quarantine, then marked as deleted: never sent twice, and a person decides:
  `mailslice stuck list`, `release`, `discard`.
- `recover`: by its stage marks: before `sending` it is given to another worker; while `sending` it
  fails, never tried again; after `sent` it is complete.

**Dangers.** A closed mail is not delivered until somebody releases it. Should its handler come back
after all it may have been sent: the list then says so (`finished`). `recover` needs workers that
write stage marks (MAILSLICE_QUEUE_STAGE_MARKS), else it is refused. The mails of a worker that died
or was stopped are never touched: the broker gives them to another.

**Params.** `queues`: names, none = all. `lock_timeout`, `mode`: as above. `most`: decisions in one
run; with more the gate refuses the plan. `dry_run`: plan, check and report. `intensity`: of the
copying to quarantine (MAILSLICE_DUTY_RATE_S3). `reason`: kept in the ledger.

**Example**

```
airflow dags trigger stuck_mails --conf '{"queues": ["spool"], "mode": "shadow"}'
mailslice duty run stuck_mails --queue spool --lock-timeout 30m --json  # without Airflow
mailslice stuck list spool
```
"""

from datetime import timedelta

from airflow.sdk import Asset, dag

from mailslice.airflow.task_chain import Tag, dag_arguments, five_steps, list_queues, schedule_of
from mailslice.airflow.trigger_form import form_of

STUCK = Asset("stuck_mails", uri="mailslice://queue/stuck")


@dag(
    dag_id="stuck_mails",
    doc_md=__doc__,
    params=form_of("stuck_mails"),
    schedule=schedule_of("*/5 * * * *"),
    **dag_arguments(tags=[Tag.MAIL_QUEUE], timeout=timedelta(minutes=30)),
)
def stuck_mails() -> None:
    """Plan, check, apply, verify, report: for each queue."""
    five_steps("stuck_mails", "stuck", STUCK, plan_in_spark=False, apply_in_spark=False).expand(
        queue=list_queues()
    )


stuck_mails()
