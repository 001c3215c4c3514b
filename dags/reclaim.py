"""### Gives the disk back that deleted rows and marks still hold

Deletes alone never shrink the tables of a queue view: their compaction
(TimeWindowCompactionStrategy) merges files of one window only, and data and the deletes written
later never meet. `nodetool flush` and `nodetool garbagecollect` bring them together, and that is
what this DAG runs, one node after the other, by the command in MAILSLICE_NODETOOL.

It runs when `queue_cleanup` has ended well on every queue: the asset `queue_cleanup/all` starts it.
A node that nothing waits for is left alone. The DAG settings (docs/airflow.md) may give it a
schedule of its own, such as once a week.

**Steps**

- `plan_reclaim`: asks each node for MiB a table and for pending compactions; which nodes are due,
  by what cleanups deleted since. Changes: nothing.
- `check_plan`: Great Expectations: all nodes up, tables repaired within gc_grace, the command names
  the node; a failing one stops here. Changes: nothing.
- `apply_reclaim`: node by node: flush, measure, garbagecollect, measure; stops when compactions
  pile up or a node goes away. Changes: files of Cassandra.
- `verify`: Great Expectations: every node says that it rewrote its tables, none is still at work.
  A reclaimed node that is down fails the run: run it again with `force` once the node is back.
  Changes: nothing.
- `report`: ledger row, MiB before and after, a picture; runs also after a failure, and then fails
  the run. Changes: ledger.

**Dangers.** No mail, row or mark is touched: what Cassandra answers is the same before and after. A
node rewrites the files of these tables: it needs room for the largest of them, and reads and writes
them once. Never two nodes at once, not even when a run was killed: the next one asks Cassandra what
is still at work. The command is run as it stands in the setting, without a shell, as the user of
Airflow's worker. Where a row has several replicas, a mail whose end a node missed comes back as
live once the others have purged its tombstones: without a repair within gc_grace the run is
refused.

**Intensity** has no meaning here: one node at a time is as gentle as it gets. Slow a node down by
its compaction throughput.

**Without MAILSLICE_NODETOOL** nothing is run: the report says about how many MiB wait, and which
command frees them.

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
