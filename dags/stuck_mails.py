"""### Finds mails whose worker hangs, every 5 minutes

A handler that never returns holds its mail for ever. The broker counts one unacknowledged message,
and does not say which one, or since when. So each worker records every few seconds which mails it
holds. This DAG reads only these records: it scans no view and slows no worker.

**Steps, for each queue**

- `plan_stuck`: reads the workers' records, waits until each worker has written another one or is
  known to be dead, and lists the mails that are held too long. Changes: nothing.
- `check_plan`: Great Expectations over the rows of the plan: every mail once, over the time-out,
  with a worker of this queue; not too many mails. Changes: nothing.
- `apply_stuck`: reads the records again; notes, closes or recovers each mail; discards the records
  of dead workers. Changes: quarantine, marks; by the mode the work queue.
- `verify`: Great Expectations over what the stores say of each mail: decisions are written, closed
  mails have a mark and are complete in quarantine. Changes: nothing.
- `report`: ledger row and report. It runs after a failure, too, and then fails the run. Changes:
  ledger.

**Lock timeout.** 10 times the p99 processing time of the queue, and at least 10 minutes
(MAILSLICE_DUTY_STUCK_FACTOR, MAILSLICE_DUTY_STUCK_AT_LEAST). The report has the p99 and the
time-out. Only mails in a handler count. Mails that wait for a handler do not.

**Modes** (MAILSLICE_DUTY_STUCK_MODE, `close` when not set):

- `shadow` leaves stuck mails alone. It writes down what `close` (or `recover`, where stage marks
  are on) would do. It finishes what a killed run in another mode began.
- `close` copies the mail to quarantine, then marks it as deleted. The mail is never sent twice. A
  person decides by `mailslice stuck list`, `release` and `discard`. Recipients that were served, by
  the stage marks, are left out. If all were served, the mail is complete.
- `recover` goes by the stage marks. Before `sending` another worker gets the mail. While `sending`
  the mail fails, and is never tried again. After `sent` the mail is complete.

**Dangers.** A closed mail is not delivered until somebody releases it. Its handler may still come
back, and may have sent the mail: `stuck list` then says `finished`. `recover` is refused unless
workers write stage marks (MAILSLICE_QUEUE_STAGE_MARKS). James neither reads nor writes them: where
James consumes the queue, too, `recover` may deliver twice, so use `close`. Mails of a worker that
died or was stopped are never touched: the broker redelivers them.

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
