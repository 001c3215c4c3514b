"""### Finds stuck messages of a Postal, every 5 minutes

A worker of Postal that dies or hangs leaves its locks in `queued_messages`. No worker takes these
messages again, and after a day Postal's tidy task deletes them without a record. This DAG works on
Postal's own MariaDB, beside live workers. It needs no James and no RabbitMQ.

**Steps, once for all mail servers of the Postal**

- `plan_postal`: reads the queue in pages by key, and the messages and delivery records of old
  locks. It says of each row whether it is stuck, lost or gone, and how far its worker had come.
  Changes: nothing.
- `check_plan`: Great Expectations over the rows of the plan: each once, older than its batch may
  last; no message that may have been sent goes back. Changes: nothing.
- `apply_postal`: reads each row again, then acts by the mode. Changes: quarantine; Postal's
  databases, by one short transaction for each message.
- `verify`: Great Expectations over what the stores say of each row: closed messages are out of the
  queue and complete in quarantine. Changes: nothing.
- `report`: ledger row and report. It runs after a failure, too, and then fails the run. Changes:
  ledger.

**Lock time-out.** 10 times the p99 of the sending times, and at least 10 minutes
(MAILSLICE_POSTAL_LOCK_TIMEOUT sets it). A batch of n rows may last (n - 1) x p99 longer.

**Modes** (MAILSLICE_POSTAL_MODE, `shadow` when not set):

- `shadow` leaves stuck messages alone. The report says what the other modes would do.
- `close` copies the message to quarantine, takes it out of the queue, and sets it Held in Postal. A
  person decides, on Postal's own page or by `mailslice postal quarantine list`, `release` and
  `discard`.
- `retry` puts a message back into the queue if nothing was sent and its holder is dead
  (`restarted`). It closes a message that may have been sent.

`close` and `retry` delete the queue row of an answered message. Lost messages are counted and
reported.

**Schedule.** Every 5 minutes where MAILSLICE_POSTAL_URL is set for Airflow's processes, else by
hand. The schedule does not follow settings in an Airflow connection: set it in the DAG settings.

**Dangers.** A closed message is not delivered until somebody releases it. Raise Postal's
`queued_message_lock_stale_days` before mode close. Otherwise its tidy task deletes the messages
first.

**Example**

```
airflow dags trigger stuck_mails_postal --conf '{"mode": "shadow", "dry_run": false}'
mailslice duty run stuck_mails_postal --mode shadow --json     # without Airflow
mailslice postal stuck
```
"""

import os
from datetime import timedelta

from mailslice.airflow.dag_settings import BY_HAND
from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain

IS_SET = any(os.environ.get(f"MAILSLICE_POSTAL_URL{end}") for end in ("", "_FILE"))


@duty_dag(
    "stuck_mails_postal",
    doc=__doc__,
    schedule="*/5 * * * *" if IS_SET else BY_HAND,
    tags=[Tag.MAIL_QUEUE],
    timeout=timedelta(minutes=30),
    deadline=timedelta(minutes=15),
)
def stuck_mails_postal(chain: Chain) -> None:
    """Plan, check, apply, verify, report: once for all mail servers."""
    chain.one_chain("postal", plan_in_spark=False, apply_in_spark=False)
