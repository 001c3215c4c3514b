"""Delete planned partitions, bounded, each up to the greatest write time of its planned rows: what is written later survives."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mailslice.duties.queue_cleanup.plan_file import PlannedPlace
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.duty.lock import Lock
from mailslice.duty.throttle import Throttle
from mailslice.model import crash
from mailslice.model.names import QueueTable

_IN_FLIGHT = 16
_CHECK_EACH = 64
_SHOWN = 20
OUT_OF_TIME = "time limit"
"""Why a place was left to the next run."""


@dataclass(frozen=True, slots=True)
class Deletes:
    """`failures`: the first places that failed, with the reason. `tried`: how many places, from the first; the others the time limit left to the next run."""

    failures: dict[str, str]
    tried: int


def delete_places(
    context: StepContext, places: Sequence[PlannedPlace], lock: Lock, throttle: Throttle
) -> Deletes:
    """Delete the places, until the time limit of the run. One that fails stops no other. Raises LockLost before it acts without the lock."""
    tables = {QueueTable.V3: context.stores.tables.v3, QueueTable.V4: context.stores.tables.v4}
    failures: dict[str, str] = {}
    tried = len(places)
    flying: deque[tuple[PlannedPlace, Any]] = deque()

    def land() -> None:
        place, future = flying.popleft()
        lock.check()  # what is asked again may have taken long
        try:
            future.result()
        except Exception as error:  # noqa: BLE001 - whatever the driver raises: recorded, and the read-back decides what is gone
            if len(failures) < _SHOWN:
                failures[
                    f"{place.table.value} {iso(place.place.slice_start)} bucket {place.place.bucket}"
                ] = str(context.stores.cassandra.error(error))

    for number, place in enumerate(places):
        if number % _CHECK_EACH == 0:
            lock.check()
        if context.out_of_time():
            tried = number
            break
        throttle.take()
        flying.append(
            (
                place,
                tables[place.table].delete_partition_future(
                    context.queue, place.place, place.newest_us
                ),
            )
        )
        if len(flying) >= _IN_FLIGHT:
            land()
        if number == 0:
            crash.point("apply:inside-deletes")
    while flying:
        land()
    return Deletes(failures, tried)
