"""Every operation of the hot path killed (-9) at every point it comes to: nothing accepted is lost,
nothing ended comes back, no content is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from mailslice.testing.faults.matrix import Case, LaneResult, World, kills
from mailslice.testing.faults.operations import OPERATIONS
from mailslice.testing.faults.points import named
from tests.services.admin.test_moves import MOVE_POINTS
from tests.services.cli.test_undelete import CLAIMED_ANEW, UNDELETE_POINTS, VOIDED
from tests.services.faults.lanes import Lane, run_lanes
from tests.services.faults.test_waiting_kills import POINTS as WHERE_MAILS_WAIT
from tests.services.worker.test_holds import HOLD_POINTS

AT_ONCE = 5


OWN = {
    "bounce": ("report:", "complete:"),
    "stages": ("stage:", "handler:", "complete:"),
    "stages-retry": ("stage:again", "retry:"),
    "stages-doubt": ("fail:", "quarantine:", "report:"),
}
"""Where these are killed here: at the points that others do not come to.

At all of theirs they are in the whole matrix.
"""


def points_of_operations() -> set[str]:
    """The points that the matrix of operations reaches. Tests of their own kill at the others."""
    of_postal = {point for point in named() if point.startswith("postal:")}
    elsewhere = {
        *WHERE_MAILS_WAIT.values(),
        *MOVE_POINTS,
        *UNDELETE_POINTS,
        *(CLAIMED_ANEW, VOIDED, "release:voided"),
        *HOLD_POINTS,
    }
    return named() - elsewhere - of_postal


def own_kills(operation: str, points: Sequence[str]) -> list[Case]:
    return kills([point for point in points if point.startswith(OWN.get(operation, ""))])


@pytest.fixture(scope="module")
def outcomes(world: World) -> dict[str, LaneResult]:
    return run_lanes(
        world,
        {operation: Lane(operation, partial(own_kills, operation)) for operation in OPERATIONS},
        AT_ONCE,
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_books_balance_after_a_kill_at_every_point_of(
    outcomes: dict[str, LaneResult], operation: str
) -> None:
    outcome = outcomes[operation]
    assert outcome.books.wrong == []
    assert outcome.missed == []
    assert outcome.points


def test_something_was_killed_at_every_point_that_the_code_names(
    outcomes: dict[str, LaneResult],
) -> None:
    killed_at = {
        case.stop.point for outcome in outcomes.values() for case in outcome.stopped if case.stop
    }
    assert killed_at == points_of_operations()


def test_what_a_killed_enqueue_leaves_is_told_apart(outcomes: dict[str, LaneResult]) -> None:
    """The kit sees something: without these the balance above would be that of an empty book."""
    books, end = outcomes["enqueue"].books, outcomes["enqueue"].end
    assert end is not None
    assert books.lost(end)  # killed between row and publish
    assert not books.lost(end) & books.accepted
    assert len(books.drained) > len(books.accepted)  # killed between confirm and return


def test_a_retry_that_was_killed_anywhere_and_asked_again_delivers_each_mail_once(
    outcomes: dict[str, LaneResult],
) -> None:
    deliveries = outcomes["retry-now"].books.deliveries
    assert deliveries
    assert set(deliveries.values()) == {1}


def test_blobs_are_left_only_by_what_was_killed(outcomes: dict[str, LaneResult]) -> None:
    books, end = outcomes["complete"].books, outcomes["complete"].end
    assert end is not None
    kept = {
        item.enqueue_id
        for item in (row.item for row in end.rows.values())
        if {item.header_blob_id, item.body_blob_id} & end.blobs
    }
    assert kept
    assert kept <= end.marks
    assert not kept & books.drained.keys()
