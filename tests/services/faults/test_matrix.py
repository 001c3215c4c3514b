"""The full matrix: every operation, at every point it comes to, with every way in which a store can
break; and killed at every time it comes there.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from mailslice.testing.faults.matrix import Break, World, faults, kills
from mailslice.testing.faults.operations import OPERATIONS
from tests.services.faults.lanes import STORES, WAYS, Lane, fault, run_lanes, strict

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1500)]
AT_ONCE = 8


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("store", STORES)
def test_a_store_that_breaks_at_any_point_loses_and_doubles_nothing(
    own_place: World, store: str, how: Break
) -> None:
    rng = random.Random(f"{store} {how}")
    lanes = {
        f"{store}-{how}-{name}": Lane(
            name, partial(faults, fault=fault(store, how, rng)), strict(store)
        )
        for name in OPERATIONS
    }
    outcomes = run_lanes(own_place, lanes, AT_ONCE)
    wrong = [
        f"{name}: {text}" for name, outcome in outcomes.items() for text in outcome.books.wrong
    ]
    assert not wrong, "\n".join(wrong)
    assert {name: outcome.missed for name, outcome in outcomes.items() if outcome.missed} == {}


def test_a_kill_at_each_of_the_first_times_that_a_point_is_come_to(own_place: World) -> None:
    lanes = {f"kill-{name}": Lane(name, partial(kills, limit=4)) for name in OPERATIONS}
    outcomes = run_lanes(own_place, lanes, 4)
    wrong = [
        f"{name}: {text}" for name, outcome in outcomes.items() for text in outcome.books.wrong
    ]
    assert not wrong, "\n".join(wrong)
    assert all(outcome.stopped for outcome in outcomes.values())
