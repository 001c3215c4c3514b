"""mailslice's consumers and duties beside a real James that works on the same queue."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stack.james import JamesNode, james_node
from tests.conftest import Fresh
from tests.services.james.conftest import Shared
from tests.services.james.mails import of_james, of_mailslice

ROUNDS = 2
EACH = 25


@pytest.fixture(scope="module")
def consumer(fresh_module: Fresh, tmp_path_factory: Any) -> Iterator[JamesNode]:
    """A second James, which moves the starts at every deletion: the most that James ever cleans."""
    with james_node(
        fresh_module.but(MAILSLICE_QUEUE_SLICE_WINDOW="1s").settings,
        tmp_path_factory.mktemp("consumer"),
        **{"mailqueue.view.updateBrowseStartPace": 1},
    ) as node:
        yield node


@pytest.fixture
def both(fresh_module: Fresh, consumer: JamesNode) -> Shared:
    queue = f"q{uuid.uuid4().hex[:8]}"
    consumer.create(queue)
    return Shared(fresh_module.but(MAILSLICE_QUEUE_SLICE_WINDOW="1s"), consumer, queue)


def test_consumers_of_both_hand_out_each_mail_once(both: Shared) -> None:
    names = [f"{side}-{number}" for side in "jm" for number in range(2 * EACH)]
    both.james.enqueue(*(of_james(name) for name in names if name[0] == "j"), queue=both.queue)
    both.enqueue(*(of_mailslice(name) for name in names if name[0] == "m"))
    half = len(names) // 2
    with ThreadPoolExecutor() as pool:
        by_mailslice = pool.submit(both.drain, half)
        by_james = both.james.dequeue(half, queue=both.queue, prefetch=3)
        taken = [*(mail["name"] for mail in by_james), *by_mailslice.result()]
    assert sorted(taken) == sorted(names)
    assert both.sizes() == (0, 0)


def test_cleanup_loses_nothing_while_james_moves_the_starts_and_both_enqueue(both: Shared) -> None:
    """A stuck mail keeps James from cleaning. The duty empties what lies around it."""
    both.enqueue(of_mailslice("stuck"))
    time.sleep(1.1)
    with ThreadPoolExecutor() as pool:
        for number in range(ROUNDS):
            names = [f"{number}-{one}" for one in range(EACH)]
            both.james.enqueue(*(of_james(f"j-{name}") for name in names), queue=both.queue)
            both.enqueue(*(of_mailslice(f"m-{name}") for name in names))
            cleanup = pool.submit(_clean, both)
            taken = both.james.dequeue(EACH, queue=both.queue, inFlight=8)
            report = cleanup.result()
            assert report["status"] in {"done", "nothing to do"}, report
            assert len({mail["name"] for mail in taken}) == EACH
    by_james, by_mailslice = both.names()
    assert by_james == by_mailslice
    assert len(by_james) == 1 + ROUNDS * EACH
    time.sleep(2.1)
    assert _clean(both)["status"] in {"done", "nothing to do"}
    assert both.sizes() == (1 + ROUNDS * EACH, 1 + ROUNDS * EACH)
    assert sorted(mail["name"] for mail in both.james.dequeue(len(by_james), queue=both.queue)) == (
        by_james
    )
    assert both.sizes() == (0, 0)
    time.sleep(3.1)
    last = _clean(both)
    assert last["applied"] > 0, "no cleanup had anything to remove"
    assert last["remaining"] == 0
    both.james.enqueue(of_james("after"), queue=both.queue)
    assert both.sizes() == (1, 1)
    assert both.drain(1) == ["after"]


def _clean(both: Shared) -> dict[str, Any]:
    words = ("duty", "run", "queue_cleanup", "--queue", both.queue, "--grace", "2s")
    lines: list[dict[str, Any]] = both.cli.json(*words, timeout=300)
    return lines[-1]
