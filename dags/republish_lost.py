"""### Puts lost mails back, on demand, after incidents

A broker that was restored from nothing, or a queue that somebody purged, leaves mails in the view
whose messages are gone. This DAG publishes them again, under their own enqueue ids: only those that
`queue_audit` proved lost by a census, each proved again just before it is published.

**Steps, for each queue by itself**

- `plan_republish`: takes the lost mails of the newest audit with a census (or of `audit`), which
  must not be older than 24 h, and proves each again. Changes: nothing.
- `check_plan`: Great Expectations: only mails of that audit, each once, none in doubt unless
  duplicates are accepted. Changes: nothing.
- `apply_republish`: proves each again, claims it in the ledger of decisions, publishes it with
  confirm, records it. Changes: RabbitMQ, own keyspace.
- `verify`: Great Expectations: all that was published is in the ledger of decisions. Changes:
  nothing.
- `report`: ledger row and report; runs also after a failure, and then fails the run. Changes:
  ledger.

**Dangers.** A mail that is published twice may be delivered twice. So: never one that has a mark,
is delayed, held, in flight or dead-lettered; each once, however often it is asked; a publish whose
confirm did not arrive is reported, and repeated only with `repeat_unknown`. On a queue that James
shares the evidence cannot tell a lost mail from one that James delivered without marking it: these
need `accept_duplicates`. A mail whose content is missing is skipped as bare. James' own task
RepublishNotProcessedMails knows of none of this, nor of delays.

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
