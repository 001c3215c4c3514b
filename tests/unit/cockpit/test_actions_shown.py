"""What the page says came of an action."""

from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.cockpit import actions
from mailslice.cockpit.actions import Actions


@pytest.mark.parametrize(
    ("result", "counts"),
    [
        ({"deleted": 0}, [(0, "deleted")]),
        ({"deleted": 1, "retried": 1, "gone": 0}, [(1, "retried"), (1, "gone meanwhile")]),
        ({"deleted": 0, "retried": 1}, [(1, "retried")]),
        (None, []),
    ],
)
def test_a_retry_never_says_that_it_deleted_mails(
    monkeypatch: pytest.MonkeyPatch, result: dict[str, Any] | None, counts: list[tuple[int, str]]
) -> None:
    monkeypatch.setattr(actions, "result_of", lambda *_: result)
    facts: Any = SimpleNamespace(settings=None)
    shown = {"queue": "spool", "result": result, "counts": counts}
    assert Actions(facts, None).result("spool", "r") == shown
