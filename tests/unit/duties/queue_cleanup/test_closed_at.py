"""Since when a proof that messages are gone counts for a plan."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mailslice.duties.queue_cleanup.decide import Shape
from mailslice.duties.queue_cleanup.plan_file import Plan, PlannedPlace
from mailslice.model.mail import Place
from mailslice.model.names import QueueTable
from mailslice.spark.plan_files import NO_PART, Digest

HOUR = timedelta(hours=1)
MIDNIGHT = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.mark.parametrize(
    ("made_at", "open_for", "closed_at"),
    [
        (MIDNIGHT + 30 * HOUR, 24 * HOUR, MIDNIGHT + 25 * HOUR),
        (MIDNIGHT + 22 * HOUR, HOUR, MIDNIGHT + 22 * HOUR),
        (MIDNIGHT + 30 * HOUR, HOUR, MIDNIGHT + 25 * HOUR),
    ],
    ids=[
        "by the largest window",
        "closed early by an operator: writers may have been at it until just before",
        "closed early, but long ago",
    ],
)
def test_a_proof_is_younger_than_the_last_write_to_a_planned_slice(
    made_at: datetime, open_for: timedelta, closed_at: datetime
) -> None:
    shape = Shape(HOUR, 24 * HOUR, 1, open_for)
    place = PlannedPlace(QueueTable.V4, Place(MIDNIGHT, 0), 1, 1, NO_PART)
    plan = Plan(
        "run",
        "spool",
        made_at,
        HOUR,
        shape,
        (QueueTable.V4,),
        False,
        None,
        None,
        None,
        None,
        Digest(),
        (place,),
    )
    assert plan.closed_at == closed_at
