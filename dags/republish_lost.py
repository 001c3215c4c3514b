"""### Publishes lost mails again, on demand

When a broker lost its disk, or somebody purged a queue, the view still has the mails, and their
messages are gone. This DAG publishes such mails again, under their own enqueue ids. It takes only
mails that a census of `queue_audit` proved lost, and proves each again right before the publish.

**Steps, for each queue**

- `plan_republish`: takes the lost mails of the newest audit with a census (or of `audit`), which
  must not be older than 24 h, and proves each again. Changes: nothing, see dangers.
- `check_plan`: Great Expectations: only mails of that audit, each once, none in doubt unless
  duplicates are accepted. Changes: nothing.
- `apply_republish`: proves each mail again, claims it in the ledger of decisions, publishes it with
  a confirm, records that. Changes: RabbitMQ, own keyspace.
- `verify`: Great Expectations: all that was published is in the ledger of decisions. Changes:
  nothing.
- `report`: ledger row and report. It runs after a failure, too, and then fails the run. Changes:
  ledger.

**Dangers.** A mail that is published twice may be delivered twice. Therefore

- it publishes no mail that has a mark, is delayed, held, in flight or dead-lettered;
- it publishes each mail once, however often you start it;
- it reports a publish whose confirm did not arrive, and repeats it only with `repeat_unknown`;
- on a queue that James shares, a lost mail looks like a mail that James delivered without a mark.
  It publishes these only with `accept_duplicates`;
- it skips a mail whose content is missing, as bare.

James' own task RepublishNotProcessedMails checks none of this, and ignores delays. `plan_republish`
and `apply_republish` take the dead letters for about a second and return them.

**Example**

```
airflow dags trigger republish_lost \
  --conf '{"queues": ["spool"], "reason": "broker lost its disk", "dry_run": false}'
mailslice duty run republish_lost --queue spool --json         # the same without Airflow
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "republish_lost",
    doc=__doc__,
    tags=[Tag.MAIL_QUEUE],
    timeout=timedelta(hours=6),
    deadline=timedelta(hours=3),
)
def republish_lost(chain: Chain) -> None:
    """Plan, check, apply, verify, report: for each queue."""
    chain.five_steps("republish", plan_in_spark=False, apply_in_spark=False)
