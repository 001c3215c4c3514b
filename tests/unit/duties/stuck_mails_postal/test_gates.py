"""Each rule of the gates fails: by rows of the plan's file, by the queue, by the quarantine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from mailslice.duties.stuck_mails_postal.duty import DUTY, closed_messages
from mailslice.duties.stuck_mails_postal.planned import PlannedRow
from mailslice.duties.stuck_mails_postal.rules import PostalState
from mailslice.model.settings import PostalMode
from mailslice.stores.own.postal_quarantine import EntryState
from tests.unit.duties.judging import broken
from tests.unit.duties.stuck_mails_postal.world import NOW, World, fake

Rows = Sequence[PlannedRow]
AT = NOW.replace(tzinfo=UTC)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    fake(monkeypatch)
    made = World(tmp_path)
    for message in (1, 2):
        made.stuck(message=message)
    return made


def with_changes(rows: Rows, **changes: Any) -> list[PlannedRow]:
    return [replace(row, **changes) for row in rows]


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        (lambda rows: rows, set()),
        (lambda rows: [rows[0], rows[0]], {"queued_message"}),
        (lambda rows: with_changes(rows, locked_at=AT), {"over_the_limit_seconds"}),
        (lambda rows: with_changes(rows, locked_at=None), {"unlocked_and_not_gone"}),
        (lambda rows: with_changes(rows, state=PostalState.UNKNOWN), {"stage_of_nothing"}),
        (lambda rows: with_changes(rows, stage=None), {"stage_of_nothing", "sent_and_put_back"}),
    ],
)
def test_each_rule_of_the_check_fails_by_rows_of_the_plans_file(
    world: World, change: Callable[[Rows], Rows], columns: set[str]
) -> None:
    run, plan = world.planned(mode=PostalMode.RETRY, restarted=AT - timedelta(minutes=1))
    rows = change(run.read_rows(plan.rows, PlannedRow))
    changed = plan.model_copy(update={"rows": run.write_rows("rows", rows, PlannedRow)})
    assert broken(*DUTY.check(run, changed)) == columns


@pytest.mark.parametrize("column", ["queued_message", "queue", "copy", "entry"])
def test_each_rule_of_verify_fails_by_what_the_stores_have(world: World, column: str) -> None:
    before = dict(world.queue)
    run, plan = world.planned()
    world.applied(run, plan)
    rows, entries = run.read_rows(plan.rows, PlannedRow), world.entries
    assert broken(closed_messages(run, rows, entries)) == set()
    if column == "queued_message":
        rows = [rows[0], rows[0]]
    elif column == "queue":
        world.queue.update(before)
    elif column == "copy":
        next(world.folder.glob("postal/quarantine/*")).write_bytes(b"cut")
    else:
        entries = [replace(entry, state=EntryState.NOTED) for entry in entries]
    assert broken(closed_messages(run, rows, entries)) == {column}
