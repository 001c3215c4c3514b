"""Producers, consumers, an administrator and a cleanup on one queue, while the roads to the stores break and processes are killed; then the books are balanced.

MAILSLICE_TEST_WALK_SEED repeats a walk's choices (what the machine makes of them it decides itself); MAILSLICE_TEST_WALK_SECONDS changes its length.
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


async def walked(walk: Walk, least: int) -> Books:
    print(walk.said())
    books = await walk.run()
    print(books.counts)
    stories = "\n\n".join(str(finding) for finding in books.findings[:5])
    assert not books.findings, f"{len(books.findings)} mails do not balance; {walk.said()}\n{stories}"
    assert books.counts["accepted"] >= least
    assert books.counts["completed"] >= least / 2
    assert books.counts.get("fault", 0) > 2
    return books


@pytest.mark.timeout(300)
async def test_after_a_short_walk_every_mail_is_accounted_for(fresh: Any, tmp_path: Path) -> None:
    walk = Walk(fresh, tmp_path, seed(SEED), Plan(seconds(10), producers=2, consumers=2, tasks=3, longest_fault=1.0, clears=False))
    await walked(walk, least=30)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_after_ten_minutes_every_mail_is_accounted_for(fresh: Any, tmp_path: Path) -> None:
    walk = Walk(fresh, tmp_path, seed(random.SystemRandom().randrange(1 << 32)), Plan(seconds(600), producers=4, consumers=4, tasks=3, drain=300))
    books = await walked(walk, least=round(3 * seconds(600)))
    assert books.counts["kill"] > 5
    assert books.counts["deleted"] > 5
    assert books.counts["cleaned"] > 5
    assert max(process.peak_mib for process in walk.processes) < 250
