"""What a person decides about a mail in quarantine is kept once it is done."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest

from mailslice.actions.perform import StuckMailDecision

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
NEW_ID = uuid4()


class Quarantined:
    """A quarantine from which the mail is gone, or not."""

    def __init__(self, is_there: bool) -> None:
        self.is_there = is_there

    def discard(self, _mail: object) -> bool:
        return self.is_there

    def release(self, _mail: object) -> object:
        return NEW_ID


@pytest.mark.parametrize(
    ("discards", "is_there", "answer", "actions"),
    [
        (True, True, True, ["discarded"]),
        (True, False, False, []),
        (False, True, NEW_ID, ["released"]),
    ],
)
def test_a_decision_is_kept_of_a_mail_that_was_still_there(discards, is_there, answer, actions):
    kept = []
    mail = SimpleNamespace(
        enqueue_id=uuid4(), name="m", stage="DATA", worker="w", age=timedelta(hours=1), attempt=1
    )
    stores = SimpleNamespace(
        own=SimpleNamespace(
            decisions=SimpleNamespace(save=lambda _queue, row, _keep: kept.append(row))
        ),
        settings=SimpleNamespace(duty=SimpleNamespace(retention=timedelta(days=90))),
    )
    decision = StuckMailDecision(Quarantined(is_there), discards, "by hand", "ada")
    assert decision.apply(mail, stores, "spool", lambda: NOW) == answer
    assert [(row.action, row.who, row.decided) for row in kept] == [
        (action, "ada", NOW) for action in actions
    ]
