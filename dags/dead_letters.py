"""### Reports, drops, exports and redrives the dead letters of every mail queue

The report says why each letter died (bad JSON, missing blob, rejected by a handler, delivery limit,
expired, cleaned, other), gives the ages, and shows a sample. The DAG drops the letters of deleted
mails. It exports letters that hold no mail to a file, and then drops them. On request it redrives
letters: it puts them back into their queue. It runs hourly.

**Steps, for each queue**

- `plan_letters`: takes up to 100,000 letters (`look_at`), reads marks, notes and rows, writes down
  the action for each letter, and returns all of them. Changes: nothing, see dangers.
- `check_plan`: Great Expectations: every letter once, none redriven twice, too often or without a
  request. A failure ends the run. Changes: nothing.
- `apply_letters`: takes the letters again, proves each planned letter once more, then acts. It
  returns all other letters. Changes: both queues, artifacts.
- `verify`: takes the letters again: those that were acted on have left, and every export is
  complete, byte for byte. Changes: nothing, see dangers.
- `report`: ledger row and report. It runs after a failure, too, and then fails the run. Changes:
  ledger.

**Dangers.** Every letter that a step takes and does not act on goes back, even if the step is
killed. RabbitMQ marks it as redelivered. A classic queue keeps its order. A quorum queue puts
returned letters at its end. A quorum queue with a delivery limit is refused, because each return
counts.

A redriven mail is delivered again. Without `redrive` no letter is redriven, and no mail is redriven
more often than `most_redrives`. A mail that is deleted or delayed, or whose content is missing, is
never redriven. A mail without a row is redriven only with `force_cleaned`. A kill between publish
and acknowledgement leaves the letter beside its copy. Once the mail is done, the second of the two
is dropped.

**Costs.** A queue without letters takes a second. While letters are taken, the broker needs 5 KB
for each. `apply_letters` and `verify` take as many letters as `plan_letters` did; in a quorum queue
they take up to 200,000. A letter without a reason (James writes none) costs two requests to S3. A
redrive of letters that name no slice (James' do not) searches all slices from browseStart on:
`plan_letters` once for 500 candidates, `apply_letters` once for 100 letters.

**Needs** RabbitMQ's management API, and no other consumer of the dead letter queue. Exports are
below `dead-letters/QUEUE` of MAILSLICE_ARTIFACTS. mailslice never removes them.

**Example**

```
airflow dags trigger dead_letters --conf '{"queues": ["spool"], "redrive": true}'   # a dry run
airflow dags trigger dead_letters \
  --conf '{"queues": ["spool"], "redrive": true, "dry_run": false}'
mailslice duty run dead_letters --queue spool --redrive --cause expired --limit 100 --dry-run
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "dead_letters",
    doc=__doc__,
    schedule="25 * * * *",
    tags=[Tag.MAIL_QUEUE, Tag.DELETES],
    timeout=timedelta(minutes=50),
    deadline=timedelta(minutes=30),
)
def dead_letters(chain: Chain) -> None:
    """Plan, check, apply, verify, report: for each queue."""
    chain.five_steps("letters", plan_in_spark=False, apply_in_spark=False)
