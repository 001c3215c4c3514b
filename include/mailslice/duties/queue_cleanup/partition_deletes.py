"""Delete planned partitions, each up to the greatest write time of its planned rows.

What is written later survives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mailslice.duties.queue_cleanup.plan import PartitionName, PlannedPartition
from mailslice.duties.queue_cleanup.view import rows_of
from mailslice.maintenance.rate_limit import Throttle
from mailslice.maintenance.run import Run
from mailslice.model import crash
from mailslice.model.errors import MailsliceError
from mailslice.stores.cassandra.session import Pending

_IN_FLIGHT = 16
_LOCK_CHECK_INTERVAL = 64
_NAMED = 100


@dataclass(frozen=True, slots=True)
class Deletes:
    """`failures`: partitions that failed, the first hundred, and why.

    `tried`: how many partitions, from the first; the time limit left the others to the next run.
    """

    failures: Mapping[PartitionName, str]
    tried: int


def delete_partitions(
    run: Run, partitions: Sequence[PlannedPartition], throttle: Throttle
) -> Deletes:
    """Delete them, until the time limit of the run. One that the store fails stops no other.

    Raises LockLost before it acts without the lock, and what is no store's fault.
    """
    failures: dict[PartitionName, str] = {}
    in_flight: deque[tuple[PlannedPartition, Pending]] = deque()

    def wait_for_oldest() -> None:
        partition, delete = in_flight.popleft()
        run.require_lock()  # what is asked again may have taken long
        try:
            delete.result()
        except MailsliceError as error:  # the read-back decides what is gone
            if len(failures) < _NAMED:
                failures[partition.name] = str(error)

    tried = 0
    for partition in partitions:
        if tried % _LOCK_CHECK_INTERVAL == 0:
            run.require_lock()
        if run.out_of_time():
            break
        throttle.take()
        table = rows_of(run.stores, partition.table)
        delete = table.delete_partition_future(run.queue, partition.partition, partition.newest_us)
        in_flight.append((partition, delete))
        tried += 1
        if len(in_flight) >= _IN_FLIGHT:
            wait_for_oldest()
        if tried == 1:
            crash.point("apply:inside-deletes")
    while in_flight:
        wait_for_oldest()
    return Deletes(failures, tried)
