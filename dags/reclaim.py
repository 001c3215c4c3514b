"""### Frees the disk space of deleted rows and marks

Deletes alone never shrink the tables of a queue view. Their compaction
(TimeWindowCompactionStrategy) merges files of one window only, so it never merges data with deletes
that were written later. `nodetool flush` and `nodetool garbagecollect` do. This DAG runs both on
one node after the other, by the command in MAILSLICE_NODETOOL.

It runs when `queue_cleanup` has succeeded on every queue: the asset `queue_cleanup/all` starts it.
A node without deleted data is left alone. The DAG settings (docs/airflow.md) may give the DAG a
schedule of its own, such as once a week.

**Steps**

- `plan_reclaim`: asks each node for the MiB of each table and for pending compactions. It plans the
  nodes that are due, by what cleanups deleted since. Changes: nothing.
- `check_plan`: Great Expectations: all nodes are up, tables were repaired within gc_grace, the
  command names the node. A failure ends the run. Changes: nothing.
- `apply_reclaim`: on each node: flush, measure, garbagecollect, measure. It stops when compactions
  pile up or a node goes away. Changes: files of Cassandra.
- `verify`: Great Expectations: every node says that it rewrote its tables, and none is still at
  work. A reclaimed node that is down fails the run: run it again with `force` once the node is
  back. Changes: nothing.
- `report`: ledger row, MiB before and after, a picture. It runs after a failure, too, and then
  fails the run. Changes: ledger.

**Dangers.** No mail, row or mark is touched: Cassandra answers the same before and after. A node
reads and writes the files of these tables once, and needs room for the largest of them. Two nodes
never work at once. After a killed run the next one asks Cassandra which node is still at work. The
command runs as the setting has it, without a shell, as the user of Airflow's worker. Where a row
has several replicas, a run without a repair within gc_grace is refused. Otherwise a mail whose
completion one node missed would be live again once the other nodes have purged its tombstones.

**Intensity** has no effect: only one node works at a time. To slow a node down, lower its
compaction throughput.

**Without MAILSLICE_NODETOOL** nothing is run. The report says how many MiB can be freed, about, and
by which command.

**Example**

```
MAILSLICE_NODETOOL='ssh {host} nodetool'                       # or: kubectl exec ... --
airflow dags trigger reclaim \
  --conf '{"force": true, "reason": "after the migration", "dry_run": false}'
mailslice duty run reclaim --json                              # the same without Airflow
```
"""

from datetime import timedelta

from mailslice.airflow.duty_dag import Tag, duty_dag
from mailslice.airflow.task_chain import Chain


@duty_dag(
    "reclaim",
    doc=__doc__,
    tags=[Tag.MAIL_QUEUE],
    timeout=timedelta(hours=48),
    deadline=timedelta(hours=24),
)
def reclaim(chain: Chain) -> None:
    """Plan, check, apply, verify, report: once for the cluster."""
    chain.one_chain("reclaim", plan_in_spark=False, apply_in_spark=False)
