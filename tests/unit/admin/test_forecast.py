"""What a dry run says that a move, a delay or an undelete would do."""

from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from uuid import UUID

import pytest

from mailslice.admin import moves
from mailslice.admin.deletions import Undeleted, forecast
from mailslice.admin.deletions.packs import KeptContent
from mailslice.model.stages import Stage
from mailslice.stores.cassandra.own.table import OwnTable

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
FREE, LATER, SOONER, HELD, SENDING, DONE, OF_THE_DEAD = (UUID(int=n) for n in range(1, 8))
ROWS = [
    SimpleNamespace(enqueue_id=one)
    for one in (FREE, LATER, SOONER, HELD, SENDING, DONE, OF_THE_DEAD)
]


class Marks:
    """Stage marks of a mail that is being sent, and of one that is done."""

    def by_ids(self, _queue, ids):
        sending = SimpleNamespace(
            closed=False, recipients_at=lambda stage: [stage is Stage.SENDING]
        )
        done = SimpleNamespace(closed=True, recipients_at=lambda _: [])
        return {one: mark for one, mark in ((SENDING, sending), (DONE, done)) if one in ids}


@pytest.fixture
def stores(monkeypatch):
    def record(alive, one):
        return SimpleNamespace(is_alive=alive, in_flight=[SimpleNamespace(enqueue_id=one)])

    def delay_states(_queue, ids):
        due = {LATER: NOW + 2 * HOUR, SOONER: NOW + HOUR / 2, FREE: None}
        return {one: SimpleNamespace(due=due[one]) for one in ids if one in due}

    monkeypatch.setattr(OwnTable, "existing", classmethod(lambda *_: Marks()))
    monkeypatch.setattr(moves, "has_consumers", lambda *_: True)
    records = [record(True, HELD), record(False, OF_THE_DEAD)]
    return SimpleNamespace(
        cassandra=SimpleNamespace(require_clock=lambda *_: None),
        settings=SimpleNamespace(rabbitmq=None),
        worker_records=lambda _: records,
        delay_states=delay_states,
    )


def test_a_move_leaves_what_workers_have_and_what_is_done(stores):
    seen = moves.forecast(stores, "spool", ROWS, lambda: NOW)
    assert seen == {"moved": 4, "gone": 1, "inHandler": 2}


def test_a_delay_leaves_what_is_due_later_anyway(stores):
    seen = moves.forecast(stores, "spool", ROWS, lambda: NOW, NOW + HOUR)
    assert seen == {"delayed": 3, "gone": 1, "inHandler": 2, "later": 1}


class Unread(dict):
    """Going through all moved mails for each batch takes minutes for a million."""

    def values(self):
        raise AssertionError("all moved mails are read")


def test_a_delay_knows_its_own_new_entries_without_reading_all_that_it_moved(stores, monkeypatch):
    earlier = partial(moves.MoveOutcome, moved=Unread({LATER: FREE}), new_ids={FREE})
    monkeypatch.setattr(moves, "MoveOutcome", earlier)
    seen = moves.forecast(stores, "spool", ROWS, lambda: NOW, NOW + HOUR)
    assert seen == {"delayed": 2, "gone": 1, "inHandler": 2, "later": 1}


def deleted(number, *, is_back=False, doubt=False, content=KeptContent.PACKED):
    return SimpleNamespace(
        enqueue_id=UUID(int=number),
        is_back=is_back,
        may_be_delivered=doubt,
        kept=SimpleNamespace(content=content),
    )


@pytest.mark.parametrize(("accept", "undeleted", "doubtful"), [(False, 1, 1), (True, 2, 0)])
def test_an_undelete_brings_each_mail_back_once_and_none_without_content(
    accept, undeleted, doubtful
):
    newest = [deleted(1), deleted(2, is_back=True), deleted(3, content=KeptContent.LOST)]
    older = [deleted(1), deleted(4, doubt=True)]
    seen = Undeleted()
    forecast([newest, older], seen, accept_duplicates=accept)
    assert seen.as_json() == {
        "undeleted": undeleted,
        "already": 2,
        "contentLost": 1,
        "mayBeDelivered": doubtful,
        "ids": {},
    }
