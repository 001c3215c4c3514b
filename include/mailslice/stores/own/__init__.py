"""Records that every deployment keeps: in Cassandra, or in MariaDB where there is Postal alone."""

from collections.abc import Callable

from mailslice.stores.own.locks import LOCKS, Locks
from mailslice.stores.own.postal_decisions import POSTAL_DECISIONS, PostalDecisions
from mailslice.stores.own.postal_quarantine import POSTAL_QUARANTINE, PostalQuarantineTable
from mailslice.stores.own.records import Records, TableShape
from mailslice.stores.own.runs import RUNS, Runs

SHAPES = (RUNS, LOCKS, POSTAL_QUARANTINE, POSTAL_DECISIONS)
"""The tables that both stores can hold."""


class OwnRecords:
    """The tables of SHAPES in one store. `records` opens the table of a shape."""

    def __init__(self, records: Callable[[TableShape], Records]) -> None:
        self.runs = Runs(records(RUNS))
        self.locks = Locks(records(LOCKS))
        self.postal_quarantine = PostalQuarantineTable(records(POSTAL_QUARANTINE))
        self.postal_decisions = PostalDecisions(records(POSTAL_DECISIONS))
