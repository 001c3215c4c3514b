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
  down. What a killed run in another mode began is finished.
- `close`: is copied to quarantine, then marked as deleted: never sent twice, and a person decides:
  `mailslice stuck list`, `release`, `discard`. Recipients that were served, by its stage marks, are
  left out; when all were, it is complete.
- `recover`: by its stage marks: before `sending` it is given to another worker; while `sending` it
  fails, never tried again; after `sent` it is complete.

**Dangers.** A closed mail is not delivered until somebody releases it. Should its handler come back
after all it may have been sent: the list then says so (`finished`). `recover` needs workers that
write stage marks (MAILSLICE_QUEUE_STAGE_MARKS), else it is refused. James neither reads nor writes
them. Where James consumes the queue, too, use `close`: `recover` may deliver twice there. The mails
of a worker that died or was stopped are never touched: the broker gives them to another.

**Example**

```
airflow dags trigger stuck_mails \
  --conf '{"queues": ["spool"], "mode": "shadow", "dry_run": false}'
mailslice duty run stuck_mails --queue spool --lock-timeout 30m --json  # without Airflow
mailslice stuck list spool
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "stuck_mails",
    doc=__doc__,
    schedule="*/5 * * * *",
    tags=[Tag.MAIL_QUEUE],
    timeout=timedelta(minutes=30),
    deadline=timedelta(minutes=15),
)
def stuck_mails(chain: Chain) -> None:
    """Plan, check, apply, verify, report: for each queue."""
    chain.five_steps("stuck", plan_in_spark=False, apply_in_spark=False)
