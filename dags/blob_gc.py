"""### Deletes blobs that nothing refers to

With deduplication James deletes no content: many mails may share one object. A process that is
killed at the wrong moment leaves an object behind, too. This DAG compares every reference with the
bucket's listing, and deletes objects without one, in two phases: a run records candidates; a later
one deletes those for which its own full scan finds no reference either.

**Steps**

- `plan_blobs`: Spark: lists the bucket, then reads all references, joins them; writes candidates
  and blobs that can go, with a digest. Changes: nothing.
- `check_plan`: Great Expectations: every source and every range of keys read whole, no source
  shrank, not too many blobs; a failing one stops here. Changes: nothing.
- `apply_blobs`: Spark: reads all references again, keeps copies, looks at each blob again, deletes,
  restores deleted blobs that are referred to. Changes: blobs, own bucket.
- `verify`: Great Expectations over what is now in the buckets. Changes: nothing.
- `report`: ledger row and report: by generation and age, a sample of victims, unknown keys; runs
  also after a failure, and then fails the run. Changes: ledger.

**Sources of references.** enqueuedMailsV3 and V4, messageV3, attachmentV2, mailRepositoryContentV2,
the columns of `MAILSLICE_GC_SOURCES`, and always mailslice's own tables and bucket and the dead
letters of every queue. A missing table stops the run unless `MAILSLICE_GC_ABSENT_SOURCES` names it.
**Name every table in which your own extensions of James keep blob ids: what nothing refers to is
deleted.** A column of James' keyspace that is named like one and that nobody reads or excuses
(MAILSLICE_GC_UNREAD_COLUMNS) fails the gate.

**Dangers.** It deletes content. Never touched: what a row refers to in any spelling, keys that are
no blob ids, ids of a present generation, objects younger than `grace`, and what changed since it
was listed. Deleted content stays for `keep` in mailslice's bucket: `mailslice blobs restore`. A run
that was killed is finished by the next one.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`, without which its tasks wait for ever. The DAG settings may name others.

**Example**

```
airflow dags trigger blob_gc                                     # a dry run
airflow dags trigger blob_gc --conf '{"dry_run": false, "approve": true}'
mailslice duty run blob_gc --grace 24h --json                   # the same without Airflow
mailslice blobs restore --run RUN                               # all that a run deleted
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "blob_gc",
    doc=__doc__,
    schedule="30 3 * * 0",
    tags=[Tag.MAIL_QUEUE, Tag.DELETES],
    timeout=timedelta(hours=24),
    deadline=timedelta(hours=12),
)
def blob_gc(chain: Chain) -> None:
    """Plan, check, apply, verify, report."""
    chain.one_chain("blobs")
