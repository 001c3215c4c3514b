"""What emptied slices risk on a cluster whose tables were not repaired within gc_grace.

A node that was away while mails were marked keeps their rows without a mark. Once the other nodes
have purged their tombstones, such a row comes back. Behind browseStart nobody browses it. After
browseStart it is live mail again. A repair within gc_grace prevents that (runbook, "Repair").
"""

from __future__ import annotations

from collections.abc import Sequence

from mailslice.duties.queue_cleanup.plan import CleanupPlan, PlannedPartition
from mailslice.maintenance.run import Run
from mailslice.model.errors import MailsliceError
from mailslice.model.names import DELETED_MAILS
from mailslice.stores.cassandra.repairs import table_repairs


def unrepaired_tables(
    run: Run, plan: CleanupPlan, partitions: Sequence[PlannedPartition]
) -> list[str]:
    """A sentence for each table without a repair of all ranges within gc_grace.

    Empty where the plan empties no slice after browseStart, and where rows have one replica.
    A history that cannot be read is said: it is unknown, not recent.
    """
    start = plan.new_browse_start or plan.browse_start
    if start is None or not any(one.slice_start >= start for one in partitions):
        return []
    tables = (*(table.cql for table in plan.tables), DELETED_MAILS)
    try:
        repairs = table_repairs(run.stores.cassandra, run.settings.cassandra.keyspace, tables)
    except MailsliceError as error:
        return [f"the repair history cannot be read: {error}"]
    now = run.clock()
    return [repair.sentence() for repair in repairs if not repair.is_recent(now)]


def risk(unrepaired: Sequence[str]) -> str:
    """The sentence of a report; empty when there is no risk."""
    if not unrepaired:
        return ""
    return (
        f"; slices after browseStart are emptied, and tables were not repaired within gc_grace: a "
        f"node that was away can bring rows back as live mail ({'; '.join(unrepaired)}). See the "
        f"runbook, Repair"
    )
