"""What is asked of every plan before anybody acts by it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from mailslice.duty.plans import digest_of, reading, require_gate, require_same
from mailslice.model.errors import PlanRefused

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@dataclass
class APlan:
    digest: str = "d"
    made_at: datetime = NOW


def context(check: dict[str, Any], age: timedelta = timedelta()) -> Any:
    return SimpleNamespace(
        request=SimpleNamespace(run="r"), need=lambda _: check, clock=lambda: NOW + age
    )


@pytest.mark.parametrize(
    "check",
    [
        {},
        {"success": False, "planDigest": "d"},
        {"success": True},
        {"success": True, "planDigest": "other"},
    ],
)
def test_a_plan_that_the_gate_did_not_pass_is_refused(check: dict[str, Any]) -> None:
    with pytest.raises(PlanRefused, match=r"the gate did not pass this plan \(d\)"):
        require_gate(context(check), APlan())


def test_a_plan_may_be_as_old_as_is_said_and_no_older() -> None:
    passed = {"success": True, "planDigest": "d"}
    require_gate(context(passed, 24 * HOUR), APlan())
    with pytest.raises(PlanRefused, match=r"run r is 24\.5 h old; allowed are 24 h: plan again"):
        require_gate(context(passed, 24.5 * HOUR), APlan())
    with pytest.raises(PlanRefused, match="allowed are 1 h"):
        require_gate(context(passed, 2 * HOUR), APlan(), HOUR)


def test_a_plan_that_was_edited_or_is_of_another_run_is_refused() -> None:
    require_same("d", {"planDigest": "d"}, ("r", "spool"), "r", "spool")
    with pytest.raises(
        PlanRefused,
        match=r"plan\.json of run r on queue spool was changed: its digest is d, it says e",
    ):
        require_same("d", {"planDigest": "e"}, ("r", "spool"), "r", "spool")
    with pytest.raises(PlanRefused, match="is of run other, not of run r"):
        require_same("d", {"planDigest": "d"}, ("other", None), "r")


@pytest.mark.parametrize("value", [{}, {"madeAt": 5}, {"madeAt": "today"}, {"madeAt": None}])
def test_a_plan_that_cannot_be_read_is_refused(value: dict[str, Any]) -> None:
    with (
        pytest.raises(PlanRefused, match=r"plan\.json of run r on queue spool cannot be read"),
        reading("r", "spool"),
    ):
        datetime.fromisoformat(value["madeAt"])


def test_the_digest_does_not_hang_on_the_order_of_names() -> None:
    assert (
        digest_of({"a": 1, "b": [2]})
        == digest_of({"b": [2], "a": 1})
        != digest_of({"a": 1, "b": [3]})
    )
