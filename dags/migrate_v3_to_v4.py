"""### Copies the live mails of enqueuedMailsV3 to enqueuedMailsV4, once

For a deployment that comes from James 3.6 or older: its queue view is in V3, which James 3.7 and
later neither reads nor copies ("use an empty queue"). mailslice reads both tables, before and
after. Afterwards James sees the old mails, too, and V3 may be dropped when it holds no live row any
more.

**Steps, for each queue by itself**

- `plan_migration`: Spark: reads V3 and its deleted marks, leaves out what V4 has already, writes
  down the ids of the rest. Changes: nothing.
- `check_plan`: Great Expectations: every partition read once, every row accounted for; a failing
  one ends the run. Changes: nothing.
- `apply_migration`: Spark: proves each row live once more and writes it to V4, same place, same id,
  same write time; reads it back. Changes: enqueuedMailsV4.
- `verify`: Great Expectations: every live row of V3 against V4, counts and a hash a slice. Changes:
  nothing.
- `report`: ledger row and report; runs also after a failure, and then fails the run. Changes:
  ledger.

**Dangers.** None for mail: V3 is only read, marks and both starts are not touched, and a copy loses
to whatever is newer in V4. A mail that is deleted meanwhile is a dead row in both. Rows behind
browseStart are left out: James' own start has passed them, or its clear has. No cleanup of the
queue runs meanwhile: each waits for the other. Until V3 is dropped, size, browse and cleanup read
every copied mail twice, and count it once.

**Needs** MAILSLICE_QUEUE_TABLE=v4 (the default), the Airflow connection `spark_default`, the pool
`spark`. Run it again as long as something writes V3: it adds what came since.

**Example**

```
airflow dags trigger migrate_v3_to_v4 \
  --conf '{"queues": ["spool"], "reason": "James 3.8", "dry_run": false}'
mailslice duty run migrate_v3_to_v4 --queue spool --json       # the same without Airflow
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "migrate_v3_to_v4",
    doc=__doc__,
    tags=[Tag.MAIL_QUEUE],
    timeout=timedelta(hours=12),
    deadline=timedelta(hours=8),
)
def migrate_v3_to_v4(chain: Chain) -> None:
    """Plan, check, apply, verify, report: for each queue."""
    chain.five_steps("migration")
