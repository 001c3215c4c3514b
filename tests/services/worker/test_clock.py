"""A worker goes by its own clock: which slice is open, and where a row belongs."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.model.errors import ClockSkew
from mailslice.worker.queue_worker import open_worker
from tests.services.worker.conftest import mail


def ahead(**by: float) -> Any:
    return lambda: datetime.now(UTC) + timedelta(**by)


@pytest.mark.parametrize("minutes", [-17, -4, 4])
async def test_a_worker_whose_clock_differs_by_a_quarter_of_the_grace_does_not_start(
    spool: Any, minutes: int
) -> None:
    """At 17 minutes it would take a slice for open that a cleanup has emptied, marks and all."""
    side = "ahead of" if minutes < 0 else "behind"
    words = (
        rf"Cassandra's clock is \d+\.\d+ s {side} this machine's \(node 127\.0\.0\.1:\d+\); "
        r"allowed are 225s \(a quarter of"
    )
    with pytest.raises(ClockSkew, match=words) as raised:
        async with open_worker(spool.settings, spool.queue, clock=ahead(minutes=minutes)):
            pass
    assert "MAILSLICE_DUTY_GRACE=15m" in str(raised.value)
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("minutes", [-3, 3])
async def test_a_smaller_difference_is_allowed(spool: Any, minutes: int) -> None:
    async with open_worker(spool.settings, spool.queue, clock=ahead(minutes=minutes)) as worker:
        item = await worker.enqueue(mail(), b"x")
        async with aclosing(worker.deliveries(1)) as deliveries:
            delivery = await anext(deliveries)
            assert delivery.item.enqueue_id == item.enqueue_id
            await delivery.complete()
