"""The prefetch window hands out what is ready, whatever waits in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mailslice.worker.dequeue.prefetch_window import Slots


def message(link: Any = None) -> Any:
    return SimpleNamespace(link=link)


def delivery() -> Any:
    gone: list[str] = []
    return SimpleNamespace(abandon=lambda: gone.append("abandoned"), gone=gone)


async def test_what_is_ready_is_handed_out_beside_an_older_one_that_is_still_loading() -> None:
    slots = Slots()
    loading, second, third = (slots.arrived(message()) for _ in range(3))
    assert slots.next_ready() is None
    last, first = delivery(), delivery()
    slots.make_ready(third, first)
    slots.make_ready(second, last)
    assert (slots.next_ready(), slots.next_ready(), slots.next_ready()) == (first, last, None)
    assert list(slots) == [loading]


async def test_what_came_by_a_lost_connection_is_not_handed_out() -> None:
    slots, lost, kept = Slots(), object(), object()
    gone, stays = slots.arrived(message(lost)), slots.arrived(message(kept))
    abandoned, ready = delivery(), delivery()
    slots.make_ready(gone, abandoned)
    slots.make_ready(stays, ready)
    slots.lose(lost)  # type: ignore[arg-type]
    assert (slots.next_ready(), slots.next_ready()) == (ready, None)
    assert abandoned.gone == ["abandoned"]
    assert not slots
