"""How many tasks share the keys of a frame."""

import pytest

from mailslice.engine.frames import tasks_of


@pytest.mark.parametrize(
    ("keys", "slots", "tasks"),
    [(1, 2, 1), (3, 2, 2), (26, 2, 2), (32, 2, 4), (160, 2, 6), (10**6, 8, 24), (7, 8, 7)],
)
def test_each_slot_gets_as_many_tasks_and_few_keys_are_few_tasks(keys, slots, tasks):
    assert tasks_of(keys, slots) == tasks
