"""Which rows count as live, over the tables in memory: those that size and browse show."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mailslice.bench.clearing import drop_marks
from mailslice.duties.queue_size.measurement import Measure
from mailslice.engine.partition_scan import Marks
from mailslice.model.mail import QueueName
from mailslice.model.names import QueueTable
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryStores
from mailslice.view.configuration import view_shape
from mailslice.view.live_rows import LiveRows
from tests.contracts.making import HOUR, NOW, row

QUEUE = QueueName("spool")
SLICE = NOW - timedelta(minutes=30)


@pytest.mark.parametrize(
    ("browse_start", "live", "unproven"),
    [
        (SLICE, 2, 1),
        (SLICE + timedelta(minutes=10), 2, 1),
        (SLICE + HOUR, 0, 3),
        (SLICE - timedelta(minutes=1), 3, 0),
    ],
    ids=["at a slice's start", "within a slice", "behind all", "within the slice before"],
)
def test_a_browse_start_within_a_slice_counts_as_its_start_as_in_size_and_browse(
    browse_start: datetime, live: int, unproven: int
) -> None:
    settings = load_settings({}, state_file=Path("/nonexistent"))
    stores = MemoryStores(settings)
    stores.tables.v4.insert_many(
        [row(QUEUE, NOW, recipients=("a@x.example",)), row(QUEUE, NOW), row(QUEUE, NOW - HOUR)]
    )
    stores.tables.browse_starts.insert_first(QUEUE, browse_start)
    measure = Measure(settings, QUEUE, HOUR, 1, NOW + HOUR)
    found = [measure.slice(stores, start) for start in (SLICE - HOUR, SLICE, SLICE + HOUR)]
    assert measure.apply_browse_start(stores, found) == browse_start
    assert (sum(each.live for each in found), sum(each.unproven for each in found)) == (
        live,
        unproven,
    )
    assert LiveRows(stores.tables, QUEUE, view_shape(stores)).count(NOW + HOUR) == live
    assert [each.oldest is not None for each in found] == [live == 3, live > 0, False]


def test_a_mail_with_a_row_in_both_tables_fills_a_partition_of_each_and_counts_once() -> None:
    settings = load_settings({}, state_file=Path("/nonexistent"))
    stores = MemoryStores(settings, existing=[*QueueTable])
    mails = [row(QUEUE, NOW) for _ in range(3)]
    stores.tables.v3.insert_many(mails)
    stores.tables.v4.insert_many(mails)
    found = Measure(settings, QUEUE, HOUR, 1, NOW + HOUR).slice(stores, SLICE)
    assert (found.live, found.fullest) == (3, 3)


def test_mails_that_james_clears_while_they_are_counted_are_not_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """James moves browseStart on, then drops marks, then rows."""
    settings = load_settings({}, state_file=Path("/nonexistent"))
    stores = MemoryStores(settings)
    mails = [row(QUEUE, NOW) for _ in range(3)]
    stores.tables.v4.insert_many(mails)
    stores.tables.browse_starts.insert_first(QUEUE, SLICE)
    stores.tables.deleted.mark_many(QUEUE, [mail.enqueue_id for mail in mails])
    of = Marks.of

    def cleared(self: Marks, ids: Any) -> Any:
        stores.tables.browse_starts.write(QUEUE, SLICE + HOUR, 1 << 60)
        drop_marks(stores.tables.deleted, QUEUE, [mail.enqueue_id for mail in mails])
        return of(self, ids)

    monkeypatch.setattr(Marks, "of", cleared)
    measure = Measure(settings, QUEUE, HOUR, 1, NOW + HOUR)
    found = measure.slice(stores, SLICE)
    measure.apply_browse_start(stores, [found])
    assert (found.live, found.unproven, found.oldest, sum(found.ages.total)) == (0, 3, None, 0)
