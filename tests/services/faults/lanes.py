"""Runs lanes at the same time, as they mostly wait for connections and delays."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mailslice.testing.faults.matrix import Break, Case, Fault, LaneResult, World
from mailslice.testing.faults.operations import OPERATIONS, Seeds

SLOW = (Seeds.SET_ASIDE, Seeds.BEGUN, Seeds.LATER, Seeds.DUE_DELETED, Seeds.DUE)
Cases = Callable[[Sequence[str]], Sequence[Case]]


@dataclass(frozen=True)
class Lane:
    """An operation, and a function: its points -> the cases. `strict`: a mail whose enqueue failed
    may never be delivered.
    """

    operation: str
    cases: Cases
    strict: bool = True


def run_lanes(world: World, lanes: Mapping[str, Lane], at_once: int) -> dict[str, LaneResult]:
    """Runs each lane on a queue of its name. Lanes that wait longest start first."""
    order = sorted(lanes, key=lambda name: OPERATIONS[lanes[name].operation].seeds not in SLOW)
    with ThreadPoolExecutor(at_once) as threads:
        begun = {
            name: threads.submit(
                world.lane,
                lanes[name].operation,
                name,
                lanes[name].cases,
                strict=lanes[name].strict,
            )
            for name in order
        }
        return {name: lane.result() for name, lane in begun.items()}


STORES = ("rabbitmq", "cassandra", "s3")
WAYS = (Break.REFUSE, Break.STALL, Break.MID_FRAME)
"""The faults that a proxy can cause for each store."""
SECONDS = {Break.REFUSE: 1.2, Break.STALL: 2.6, Break.MID_FRAME: 0.5}
"""Seconds of each fault. A stall outlasts the children's time-outs of two seconds."""


def fault(store: str, how: Break, rng: random.Random) -> Fault:
    """A fault of this kind. In mid-frame it breaks off after a random number of bytes."""
    return Fault(store, how, SECONDS[how], rng.randrange(1, 300))


def strict(store: str) -> bool:
    """Without Cassandra a failed enqueue cannot be marked, and may be delivered after all."""
    return store != "cassandra"
