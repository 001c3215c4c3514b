"""### Looks after the dead letters of every mail queue, hourly

Says why each letter died (bad JSON, missing blob, rejected by a handler, delivery limit, expired,
cleaned, other), how old they are, and shows a sample. Drops the letters of mails that are deleted
already, exports letters that hold no mail to a file before it drops them, and, when asked, puts
letters back into their queue.

**Steps, for each queue by itself**

- `plan_letters`: looks at 100,000 letters (`look_at`) by holding them, reads marks, notes and rows,
  and writes down what becomes of each. Changes: nothing.
- `check_plan`: Great Expectations: every letter once, none redriven twice or too often, none
  without a request; a failing one ends the run. Changes: nothing.
- `apply_letters`: holds the queue again, proves each planned letter once more, then acts; others go
  back. Changes: both queues, artifacts.
- `verify`: looks again: what was dealt with has left, every export is there byte for byte. Changes:
  nothing.
- `report`: ledger row and report; runs also after a failure, and then fails the run. Changes:
  ledger.

**Dangers.** A look gives everything back, also when it is killed; a classic queue keeps its order,
a quorum queue puts what was looked at to its back, and one with a delivery limit is refused,
because each look counts as a delivery. A redriven mail is delivered again: no redrive happens
without `redrive`, of a mail at most `most_redrives` times, never of a mail that is deleted,
delayed, without content, or without a row (`force_cleaned` overrides the last). A kill between
publish and acknowledgement leaves the letter beside its copy: whichever comes second is dropped
once the mail is done.

**Costs** a second a queue without letters; a look holds 5 KB a letter in the broker. In a queue
that keeps its order `apply_letters` and `verify` look as far as `plan_letters` did, in a quorum
queue at up to 200,000 letters. A letter that says no reason (James' own) costs S3 two requests. Of
letters that name no slice (James' own, too) a redrive looks for the rows in all slices from
browseStart on: `plan_letters` once for 500 candidates, `apply_letters` once for 100 letters.

**Needs** RabbitMQ's management API, and no other consumer on the dead letter queue. Exports are
below `dead-letters/QUEUE` of MAILSLICE_ARTIFACTS, for ever.

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
