"""A worker goes by its own clock: which slice is open, and where a row belongs."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailslice.model.errors import ClockSkew
from mailslice.stores.cassandra.session import CassandraSession
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


@pytest.mark.parametrize(("seconds", "starts"), [(-4, True), (-6, False), (6, False)])
async def test_five_seconds_are_allowed_whatever_the_grace(
    spool: Any, seconds: int, *, starts: bool
) -> None:
    duty = spool.settings.duty.model_copy(update={"grace": timedelta(0)})
    settings = spool.settings.model_copy(update={"duty": duty})
    opening = open_worker(settings, spool.queue, clock=ahead(seconds=seconds))
    if starts:
        async with opening:
            return
    with pytest.raises(ClockSkew, match=r"allowed are 5s \(a quarter of MAILSLICE_DUTY_GRACE=0s"):
        async with opening:
            pass


@pytest.mark.parametrize(("wrong", "starts"), [(1, True), (2, False), (3, False)])
async def test_a_node_with_a_wrong_clock_stops_no_worker_but_most_of_them_do(
    spool: Any, monkeypatch: pytest.MonkeyPatch, wrong: int, *, starts: bool
) -> None:
    def skew_of(_: object, host: object, _clock: object) -> timedelta:
        return timedelta(seconds=240 * (int(str(host)[-1]) <= wrong))

    nodes = frozenset({"node1", "node2", "node3"})
    monkeypatch.setattr(CassandraSession, "connected", lambda _: nodes)
    monkeypatch.setattr(CassandraSession, "skew_of", skew_of)
    opening = open_worker(spool.settings, spool.queue)
    if starts:
        async with opening:
            return
    with pytest.raises(ClockSkew, match=r"240\.000 s ahead of this machine's \(node node[123]\)"):
        async with opening:
            pass


@pytest.mark.parametrize("minutes", [-3, 3])
async def test_a_smaller_difference_is_allowed(spool: Any, minutes: int) -> None:
    async with open_worker(spool.settings, spool.queue, clock=ahead(minutes=minutes)) as worker:
        item = await worker.enqueue(mail(), b"x")
        async with aclosing(worker.deliveries(1)) as deliveries:
            delivery = await anext(deliveries)
            assert delivery.item.enqueue_id == item.enqueue_id
            await delivery.complete()
