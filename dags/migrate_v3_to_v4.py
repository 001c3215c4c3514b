"""### Copies the live mails of enqueuedMailsV3 to enqueuedMailsV4, once

Run it after you upgraded from James 3.6 or older. The queue view is then in V3, and James 3.7 and
later neither reads nor copies V3 ("use an empty queue"). mailslice reads both tables before and
after. After the migration James sees the old mails, too. You may drop V3 when it has no live row
any more.

**Steps, for each queue**

- `plan_migration`: Spark: reads V3 and its deleted marks, leaves out the mails that V4 has, writes
  down the ids of the others. Changes: nothing.
- `check_plan`: Great Expectations: every partition was read once, every row is accounted for. A
  failure ends the run. Changes: nothing.
- `apply_migration`: Spark: proves each row live once more, writes it to V4 with the same partition,
  id and write time, and reads it back. Changes: enqueuedMailsV4.
- `verify`: Great Expectations: every live row of V3 against V4, by counts and a hash for each
  slice. Changes: nothing.
- `report`: ledger row and report. It runs after a failure, too, and then fails the run. Changes:
  ledger.

**Dangers.** None for mail. V3 is only read. Marks and both starts are not touched. A newer row in
V4 wins over a copy. A mail that is deleted meanwhile is a dead row in both tables. Rows behind
browseStart are left out, because James has passed or cleared them. A cleanup of the queue and this
DAG wait for each other. Until V3 is dropped, size, browse and cleanup read every copied mail twice,
and count it once.

**Needs** MAILSLICE_QUEUE_TABLE=v4 (the default), the Airflow connection `spark_default` and the
pool `spark`. Run it again as long as something writes V3: it copies the rows that came since.

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
