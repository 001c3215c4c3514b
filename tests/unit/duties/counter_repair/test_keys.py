"""Which ranges of which tables a task of the scan gets."""

from collections import Counter

import pytest

from mailslice.duties.counter_repair.survey import keys_of
from mailslice.engine.frames import tasks_of

TABLES = ["mailbox", "messageidtable", "mailboxcounters", "imapuidtable"]
RANGES = [(low, low + 1) for low in range(33)]


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_every_task_gets_as_many_ranges_of_each_table(slots):
    keys = keys_of(TABLES, RANGES)
    assert sorted(keys) == sorted((table, *one) for one in RANGES for table in TABLES)
    tasks = tasks_of(len(keys), slots)
    for table in TABLES:
        counts = [Counter(key[0] for key in keys[task::tasks])[table] for task in range(tasks)]
        assert max(counts) - min(counts) <= 1
