"""Producers, consumers, an administrator and a cleanup on one queue, while the roads to the stores
break and processes are killed; then the books are balanced.

MAILSLICE_TEST_WALK_SEED repeats a walk's choices (what the machine makes of them it decides
itself); MAILSLICE_TEST_WALK_SECONDS changes its length.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.walk.books import Books
from tests.acceptance.walk.driver import Plan, Walk

SEED = 20261121
"""Of the short walk: each of its runs makes the same choices."""


def seed(default: int) -> int:
    return int(os.environ.get("MAILSLICE_TEST_WALK_SEED") or default)


def seconds(default: float) -> float:
    return float(os.environ.get("MAILSLICE_TEST_WALK_SECONDS") or default)


async def walked(walk: Walk) -> Books:
    print(walk.said())
    books = await walk.run()
    print(books.counts)
    stories = "\n\n".join(str(finding) for finding in books.findings[:5])
    assert not books.findings, (
        f"{len(books.findings)} mails do not balance; {walk.said()}\n{stories}"
    )
    assert books.counts["drained"], (
        f"there are messages that nobody takes; {walk.said()}; {books.counts}"
    )
    seldom = {
        word: books.counts.get(word, 0)
        for word, least in walk.plan.needs.items()
        if books.counts.get(word, 0) < least
    }
    assert not seldom, f"wanted were {walk.plan.needs}, and there were only {seldom}; {walk.said()}"
    return books


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_after_a_short_walk_every_mail_is_accounted_for(fresh: Any, tmp_path: Path) -> None:
    needs = {"accepted": 30, "completed": 15, "fault": 3, "kill": 1, "deleted": 1, "cleaned": 1}
    plan = Plan(
        seconds(8),
        producers=2,
        consumers=2,
        tasks=3,
        longest_fault=1.0,
        clears=False,
        kills_cleaner=False,
        needs=needs,
    )
    await walked(Walk(fresh, tmp_path, seed(SEED), plan))


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_after_ten_minutes_every_mail_is_accounted_for(fresh: Any, tmp_path: Path) -> None:
    needs = {
        "accepted": 1500,
        "completed": 750,
        "fault": 100,
        "kill": 6,
        "deleted": 6,
        "cleaned": 6,
        "cleared": 1,
    }
    scaled = {word: max(1, round(least * seconds(600) / 600)) for word, least in needs.items()}
    walk = Walk(
        fresh,
        tmp_path,
        seed(random.SystemRandom().randrange(1 << 32)),
        # A mail whose process died while it had a lease comes back after ten minutes.
        Plan(seconds(600), 4, 4, tasks=3, drain=720, needs=scaled),
    )
    await walked(walk)
    assert max(process.peak_mib for process in walk.processes) < 250
