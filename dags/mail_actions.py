"""### Acts on mails of a queue: delete, retry, delay, move, republish, their undo; holds

A person, or a script, says which mails and what is to be done with them. The page of mailslice
starts it behind its buttons; so may anybody whom Airflow lets trigger it. It has no schedule.
A param that is not in the list below is refused.

**Steps**

- `select`: takes the preview of that digest, and refuses one that is of another request, edited, or
  older than an hour. Without a digest it makes a preview: count, bytes and digest are in its log
  and XCom. Changes: nothing.
- `act`: does it to the mails of the preview that are still there. Mails that came in since are left
  alone. Changes: by the action deleted marks, delays, the other queue; writes the decision.

The result says how many mails went which way; `gone` are those of the preview that were delivered
or deleted meanwhile, or done by an earlier try of the same run. A try that was killed is repeated,
and ends the same. `undo` names the run by which deleted mails come back, for seven days
(MAILSLICE_ADMIN_UNDO_FOR): action `undelete` with it as `run`.

`republish` runs the duties queue_audit, with a census, and republish_lost: with their gates.
`flush` with `digest` = `any` delivers every delayed mail, as `queue flush`. `retry`, and a `flush`
of a preview, leave those that are overdue, and fail for them.
`delay` keeps mails back for `lasts`, by a move into their own queue. It needs a worker.
`release_stuck` and `discard_stuck` are about mails in quarantine, by their `ids`: ID/ATTEMPT, as
`stuck list` shows both, or ID where it is there once.
`hold` and `release` are about the queue, or a `domain` of it; a hold needs a reason. Workers obey
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
