"""### Deletes blobs that nothing refers to

With deduplication James deletes no content, because many mails may share one object. A process that
is killed at the wrong moment also leaves an object behind. This DAG compares the listing of the
bucket with every reference, and deletes objects without one in two phases. A run records
candidates. A later run deletes those for which its own full scan finds no reference either.

**Steps**

- `plan_blobs`: Spark: lists the bucket, then reads all references and joins them; writes candidates
  and blobs that can go, with a digest. Changes: nothing, see dangers.
- `check_plan`: Great Expectations: every source and every range of keys was read to its end, no
  source shrank, not too many blobs are to go. A failure ends the run. Changes: nothing.
- `apply_blobs`: Spark: reads all references again, keeps copies, checks each blob again, deletes,
  restores deleted blobs that have a reference. Changes: blobs, own bucket.
- `verify`: Great Expectations over what is now in the buckets. Changes: nothing.
- `report`: ledger row and report: by generation and age, a sample of the blobs, unknown keys. It
  runs after a failure, too, and then fails the run. Changes: ledger.

**Sources of references.** The tables are enqueuedMailsV3 and V4, messageV3, attachmentV2 and
mailRepositoryContentV2. `MAILSLICE_GC_SOURCES` names more columns. The other sources are
mailslice's own tables and bucket, and the dead letters of every queue. A missing table ends the run
unless `MAILSLICE_GC_ABSENT_SOURCES` names it. **Name every table in which your own extensions of
James keep blob ids: what nothing refers to is deleted.** The gate fails for a column of James'
keyspace that is named like a blob id, unless a source reads it or MAILSLICE_GC_UNREAD_COLUMNS names
it.

**Dangers.** It deletes content. It never deletes a blob to which a row refers in any spelling, a
key that is no blob id, an id of a present generation, an object younger than `grace`, or an object
that changed since it was listed. Deleted content stays in mailslice's bucket for `keep`, and
`mailslice blobs restore` puts it back. The next run finishes a run that was killed. `plan_blobs`
and `apply_blobs` take the dead letters for a moment and return them.

**Needs** the Airflow connection `spark_default` (a master: `local[*]`, `spark://HOST:PORT`...) and
the pool `spark`. Without the pool its tasks wait for ever. The DAG settings may name others.

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
