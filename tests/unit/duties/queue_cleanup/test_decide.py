"""What may be deleted and where the starts may go, for any view: the invariants as properties."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.duties.queue_cleanup import decide
from mailslice.duties.queue_cleanup.decide import SliceRows
from mailslice.model.slices import slice_start
from mailslice.view.configuration import Shape

EPOCH = datetime(2026, 11, 21, tzinfo=UTC)
HOUR = timedelta(hours=1)


@st.composite
def shapes(draw):
    window = timedelta(seconds=draw(st.sampled_from([1, 5, 60, 900, 3600])))
    largest = window * draw(st.sampled_from([1, 2, 4, 24]))
    return Shape(window, largest, (draw(st.integers(1, 4)),))


@st.composite
def views(draw):
    """(shape, slices, stored browseStart, now, grace)."""
    shape = draw(shapes())
    base = slice_start(EPOCH, shape.largest_window)
    counts = st.integers(0, 3)
    numbers = draw(st.lists(st.integers(0, 60), unique=True, max_size=20))
    slices = []
    for number in sorted(numbers):
        unmarked, marked = draw(counts), draw(counts)
        slices.append(SliceRows(base + number * shape.window, unmarked + marked, unmarked))
    stored = (
        base
        + draw(st.integers(0, 60)) * shape.window
        + timedelta(seconds=draw(st.sampled_from([0, 0, 0, 1])))
    )
    now = base + timedelta(seconds=draw(st.integers(0, 200 * int(shape.window.total_seconds()))))
    return shape, slices, stored, now, timedelta(seconds=draw(st.integers(0, 1000)))


@given(views())
def test_a_new_browse_start_keeps_invariant_3(view):
    shape, slices, stored, now, grace = view
    oldest = decide.oldest_live(slices, stored, shape.window)
    highest = decide.highest_browse_start(shape.largest_window, now=now, grace=grace)
    new = decide.new_browse_start(stored, oldest, shape.window, highest)
    if new is not None:
        assert decide.aligned(new, shape.window)
        assert new > stored
        assert new <= slice_start(now - grace, shape.largest_window)
        assert not [
            each
            for each in slices
            if each.unmarked and slice_start(stored, shape.window) <= each.start < new
        ]


@given(views())
def test_browse_start_goes_as_far_as_it_may(view):
    """Were it one window further, it would pass a live row or floor(now - grace)."""
    shape, slices, stored, now, grace = view
    oldest = decide.oldest_live(slices, stored, shape.window)
    highest = decide.highest_browse_start(shape.largest_window, now=now, grace=grace)
    new = decide.new_browse_start(stored, oldest, shape.window, highest)
    reached = new if new is not None else stored
    further = slice_start(reached, shape.window) + shape.window
    assert further > slice_start(now - grace, shape.largest_window) or (
        oldest is not None and further > oldest
    )


@given(views())
def test_a_restart_that_is_confirmed_closes_slices_by_todays_window_once_its_grace_is_over(view):
    shape, _, _, now, grace = view

    def open_for(restarted):
        return decide.open_for(shape, restarted, now=now, grace=grace)

    early, late = open_for(now - grace), open_for(now - grace + timedelta(microseconds=1))
    assert (early, late, open_for(None)) == (shape.window, *2 * [shape.largest_window])
    assert decide.closed(now - grace - shape.window, early, now=now, grace=grace)
    assert decide.highest_browse_start(early, now=now, grace=grace) >= decide.highest_browse_start(
        late, now=now, grace=grace
    )


@given(views(), st.booleans())
def test_a_new_content_start_keeps_invariant_4(view, missing):
    shape, slices, browse, _, _ = view
    stored = None if missing else slice_start(browse, shape.window) - 3 * shape.window
    oldest = min(
        (each.start for each in slices if each.rows and (stored is None or each.start >= stored)),
        default=None,
    )
    new = decide.new_content_start(stored, oldest, browse, shape.window)
    if new is not None:
        assert new <= browse
        assert stored is None or new > stored
        assert decide.aligned(new, shape.window)
        assert oldest is None or new <= oldest


@given(views())
def test_every_row_is_live_dead_or_unproven(view):
    shape, slices, browse, _, _ = view
    counts = decide.counts(slices, browse, shape.window)
    assert counts.live + counts.dead + counts.unproven == sum(each.rows for each in slices)


@pytest.mark.parametrize(
    ("now", "closed"),
    [
        (HOUR + timedelta(minutes=15), True),
        (HOUR + timedelta(minutes=15) - timedelta(microseconds=1), False),
        (timedelta(minutes=30), False),
    ],
)
def test_a_slice_is_closed_at_its_end_and_the_grace(now, closed):
    assert decide.closed(EPOCH, HOUR, now=EPOCH + now, grace=timedelta(minutes=15)) is closed


def test_the_live_row_that_holds_browse_start_is_the_oldest_not_before_it():
    slices = [SliceRows(EPOCH + n * HOUR, 1, 1) for n in (1, 3, 5)]
    assert decide.oldest_live(slices, EPOCH + 2 * HOUR, HOUR) == EPOCH + 3 * HOUR
    assert decide.counts(slices, EPOCH + 2 * HOUR, HOUR) == decide.RowCounts(
        live=2, dead=0, unproven=1
    )
