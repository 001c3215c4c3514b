"""Each way in which each store can break, at a point of an operation drawn by lot: the rest of the
matrix runs as soak.
"""

from __future__ import annotations

import os
import random
from itertools import product

import pytest

from mailslice.testing.faults.matrix import Break, LaneResult, World, faults
from mailslice.testing.faults.operations import OPERATIONS
from tests.services.faults.lanes import STORES, WAYS, Lane, fault, run_lanes, strict

SEED = int(os.environ.get("MAILSLICE_TEST_SEED", "20261121"))
AT_ONCE = 9
_ASK_NOTHING = {
    "rabbitmq": {"delete", "clear", "discard"},
    "s3": {
        "flush",
        "retry",
        "retry-fewer",
        "retry-later",
        "reject",
    },
    "cassandra": set[str](),
}
"""Operations that do not need the store once they are under way: its faults would show nothing
there.
"""


def lane(rng: random.Random, store: str, how: Break) -> Lane:
    return Lane(
        rng.choice([name for name in OPERATIONS if name not in _ASK_NOTHING[store]]),
        lambda points: rng.sample(faults(points, fault(store, how, rng)), 1),
        strict(store),
    )


@pytest.fixture(scope="module")
def outcomes(world: World) -> dict[str, LaneResult]:
    lanes = {
        f"{store}-{how}": lane(random.Random(f"{SEED} {store} {how}"), store, how)
        for store, how in product(STORES, WAYS)
    }
    return run_lanes(world, lanes, AT_ONCE)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("store", STORES)
def test_nothing_is_lost_or_doubled_when_a_store_breaks(
    outcomes: dict[str, LaneResult], store: str, how: Break
) -> None:
    outcome = outcomes[f"{store}-{how}"]
    assert outcome.books.wrong == [], f"MAILSLICE_TEST_SEED={SEED}"
    assert outcome.missed == []
