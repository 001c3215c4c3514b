"""### Acts on mails of a queue: delete, retry, delay, move, republish, undo, hold

A person or a script names the mails and the action. The buttons of mailslice's page start this DAG.
Anybody who may trigger it in Airflow can start it, too. It has no schedule. A param that is not in
the list below is refused.

**Steps**

- `select`: takes the preview with that digest. It refuses a preview of another request, an edited
  one, and one that is older than an hour. Without a digest it makes a preview, and writes count,
  bytes and digest to its log and XCom. Changes: nothing.
- `act`: acts on the mails of the preview that are still there. Mails that were enqueued since are
  left alone. Changes: by the action deleted marks, delays, the other queue; the decision.

The result counts mails by outcome. `gone` counts the mails of the preview that were delivered or
deleted meanwhile, or done by an earlier try of the same run. A try that was killed is repeated, and
ends in the same state. `undo` names the run by which deleted mails come back for seven days
(MAILSLICE_ADMIN_UNDO_FOR): use the action `undelete` with it as `run`.

- `republish` runs the duties queue_audit, with a census, and republish_lost, with their gates.
- `flush` with `digest` = `any` delivers every delayed mail, as `queue flush` does. `retry`, and
  `flush` of a preview, leave mails that are overdue, and fail because of them.
- `delay` delays mails for `lasts`, by a move into their own queue. It needs a worker.
- `release_stuck` and `discard_stuck` act on mails in quarantine, by their `ids`: ID/ATTEMPT, as
  `stuck list` shows both, or ID where the quarantine has it once.
- `hold` and `release` act on the queue, or on a `domain` of it. A hold needs a reason. Workers obey
  within 10 s; James' consumers are not affected.

**Dangers.** Deleted mails are not delivered unless they are undeleted in time. A moved mail has a
new enqueue id, and is delivered at once. With `digest` = `any` nobody has seen the mails before.

**Example**

```
airflow dags trigger mail_actions \
  --conf '{"queue": "spool", "action": "delete", "sender": "spam@*", "reason": "flood"}'
airflow dags trigger mail_actions --conf '{"queue": "spool", "action": "delete", \
  "sender": "spam@*", "reason": "flood", "digest": "THE DIGEST OF THE PREVIEW"}'
mailslice queue delete spool --sender 'spam@*' --reason flood  # without Airflow
```
"""

from datetime import timedelta

from mailslice.airflow.action_dag import ActionTask, action_dag
from mailslice.airflow.duty_dag import Tag


@action_dag(
    doc=__doc__,
    tags=[Tag.MAIL_QUEUE, Tag.DELETES],
    timeout=timedelta(hours=6),
    deadline=timedelta(hours=2),
)
def mail_actions(select: ActionTask, act: ActionTask) -> None:
    """Select, then act."""
    select >> act
