"""### Gives the disk back that deleted rows and marks still hold

Deletes alone never shrink the tables of a queue view: their compaction
(TimeWindowCompactionStrategy) merges files of one window only, and data and the deletes written
later never meet. `nodetool flush` and `nodetool garbagecollect` bring them together, and that is
what this DAG runs, one node after the other, by the command in MAILSLICE_NODETOOL. The weekly
companion of `queue_cleanup`, which deletes.

**Steps**

- `plan_reclaim`: asks each node for MiB a table and for pending compactions; which nodes are due,
  by what cleanups deleted since. Changes: nothing.
- `check_plan`: Great Expectations: all nodes up, tables repaired within gc_grace, the command names
  the node; a failing one stops here. Changes: nothing.
- `apply_reclaim`: node by node: flush, measure, garbagecollect, measure; stops when compactions
  pile up or a node goes away. Changes: files of Cassandra.
- `verify`: Great Expectations: every node says that it rewrote its tables, none is still at work.
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

**Params.** `force`: also nodes of which nothing is known to wait. `least`: MiB that must wait on a
node before it is begun. `max_pending`: compactions that run or wait on a node; with more of them it
is not begun. `node_timeout`: of one command. `unrepaired`: go on although no repair is known; needs
a reason. `dry_run`: measure and report only. `reason`: kept in the ledger. `intensity` has no
meaning here: one node at a time is as gentle as it gets (slow a node down by its compaction
throughput).

**Without MAILSLICE_NODETOOL** nothing is run: the report says about how many MiB wait, and which
command frees them.

**Example**

```
MAILSLICE_NODETOOL='ssh {host} nodetool'                       # or: kubectl exec ... --
airflow dags trigger reclaim --conf '{"force": true, "reason": "after the migration"}'
mailslice duty run reclaim --json                              # the same without Airflow
```
"""

from datetime import timedelta

from airflow.sdk import Asset, dag

from mailslice.airflow.task_chain import Tag, dag_arguments, one_chain, schedule_of
from mailslice.airflow.trigger_form import form_of

RECLAIMED = Asset("reclaim", uri="mailslice://cassandra/reclaim")


@dag(
    dag_id="reclaim",
    doc_md=__doc__,
    params=form_of("reclaim"),
    schedule=schedule_of("30 4 * * 0"),
    **dag_arguments(tags=[Tag.MAIL_QUEUE], timeout=timedelta(hours=48)),
)
def reclaim() -> None:
    """Plan, check, apply, verify, report: once for the cluster."""
    one_chain("reclaim", "reclaim", RECLAIMED, plan_in_spark=False, apply_in_spark=False)


reclaim()
