"""kill -9 between and inside the steps.

No letter is lost, the next run ends as an undisturbed one would, and what doubles is handled once.
"""

import asyncio
from collections import Counter
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from mailslice.codec import message
from mailslice.worker import open_worker

SOAK = pytest.mark.soak
POINTS = [
    "apply:after-publish",
    *(
        pytest.param(point, marks=SOAK)
        for point in (
            "apply:locked",
            "apply:after-count",
            "apply:after-export",
            "apply:after-ack",
            "apply:after-all",
        )
    ),
]


def planted(letters):
    for name in ("first", "second"):
        letters.letter(letters.mail(name))
    letters.letter(b"{no mail")
    letters.letter(letters.mail("gone", marked=True))


@pytest.mark.parametrize("point", POINTS)
def test_the_run_after_a_kill_leaves_nothing_behind_and_loses_nothing(letters, point):
    planted(letters)
    request = letters.request(redrive=True)
    letters.steps(request, "plan", "check")
    letters.kill("apply", request, point)
    letters.let_the_locks_run_out()
    report = letters.run(redrive=True)
    assert report["status"] in {"done", "nothing to do"}
    assert letters.dead() == []
    copies = Counter(letters.work())
    assert copies == {"first": 2 if point == "apply:after-publish" else 1, "second": 1}
    exports = [
        file.read_bytes()
        for file in Path(letters.settings.duty.artifacts).glob(
            f"dead-letters/{letters.queue}/*.body"
        )
    ]
    assert exports == [b"{no mail"]
    again = letters.run(redrive=True)
    assert (again["status"], again["letters"]) == ("nothing to do", 0)


@SOAK
def test_the_same_plan_applied_again_after_a_kill_ends_with_the_same_numbers(letters):
    """As an Airflow retry of the task does."""
    planted(letters)
    request = letters.request(redrive=True)
    letters.steps(request, "plan", "check")
    letters.kill("apply", request, "apply:after-ack")
    letters.let_the_locks_run_out()
    letters.steps(request, "apply", "verify")
    report = letters.steps(request, "report")
    assert (
        report["redriven"],
        report["dropped"],
        report["exported"],
        report["kept"],
        report["skipped"],
    ) == (2, 1, 1, 0, 0)
    assert letters.dead() == []


@SOAK
def test_a_look_that_is_killed_gives_everything_back(letters):
    planted(letters)
    before = letters.dead()
    letters.kill("plan", letters.request(), "plan:after-look")
    assert letters.dead() == before
    assert letters.run()["letters"] == 4


@SOAK
def test_rounds_that_a_crash_cut_short_count(letters):
    """Else a worker that dies of a mail, and a redrive that dies with it, would go on for ever."""
    letters.letter(letters.mail("first"))
    for _ in range(2):
        request = letters.request(redrive=True, most_redrives=2)
        letters.steps(request, "plan", "check")
        letters.kill("apply", request, "apply:after-count")
        letters.let_the_locks_run_out()
    assert letters.run(redrive=True, most_redrives=2)["keptBy"] == {"redriven often enough": 1}
    assert letters.dead_names() == ["first"]


@SOAK
async def test_of_a_letter_and_its_copy_one_is_handled(letters):
    item = await asyncio.to_thread(letters.mail, "doubled")
    await asyncio.to_thread(letters.letter, item)
    request = letters.request(redrive=True)
    await asyncio.to_thread(letters.steps, request, "plan", "check")
    await asyncio.to_thread(letters.kill, "apply", request, "apply:after-publish")
    letters.let_the_locks_run_out()
    assert (await asyncio.to_thread(letters.run, redrive=True))["redriven"] == 1
    handled = []
    async with (
        open_worker(letters.settings, letters.queue) as worker,
        aclosing(worker.deliveries(4)) as deliveries,
    ):
        with suppress(TimeoutError):
            async with asyncio.timeout(6):
                async for delivery in deliveries:
                    handled.append(message.encode(delivery.item))
                    await delivery.complete()
    assert handled == [message.encode(item)]
    assert await asyncio.to_thread(letters.work) == []
