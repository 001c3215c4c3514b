"""What is asked of every plan before anybody acts by it."""

from datetime import UTC, datetime, timedelta

import pytest

from mailslice.maintenance.plan import QueuePlan, digest_of, load_checked_plan, read_plan
from mailslice.model.errors import PlanRefused
from tests.unit.duties.judging import run_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class APlan(QueuePlan):
    """A plan of nothing."""

    @property
    def planned(self):
        return 0


PLAN = APlan(run="r-1", queue="spool", made_at=NOW)
GOOD = {"decided": PLAN.as_json(), "planDigest": PLAN.digest}


def checked(folder, check, age=HOUR, oldest=24 * HOUR):
    run = run_of(folder, "queue_size", clock=lambda: NOW + age)
    run.folder.write_json("plan.json", GOOD)
    run.folder.write_json("check.json", check)
    return load_checked_plan(run, APlan, oldest)


@pytest.mark.parametrize(
    "check",
    [
        {},
        {"success": False, "planDigest": PLAN.digest},
        {"success": True},
        {"success": True, "planDigest": "other"},
    ],
)
def test_a_plan_that_the_gate_did_not_pass_is_refused(tmp_path, check):
    with pytest.raises(PlanRefused, match=rf"the gate did not pass this plan \({PLAN.digest}\)"):
        checked(tmp_path, check)


def test_a_plan_may_be_as_old_as_is_said_and_no_older(tmp_path):
    passed = {"success": True, "planDigest": PLAN.digest}
    assert checked(tmp_path, passed, 24 * HOUR) == PLAN
    with pytest.raises(PlanRefused, match=r"run r-1 is 24\.5 h old; allowed are 24 h: plan again"):
        checked(tmp_path, passed, 24.5 * HOUR)
    with pytest.raises(PlanRefused, match="allowed are 1 h"):
        checked(tmp_path, passed, 2 * HOUR, HOUR)


def test_a_plan_that_was_edited_or_is_of_another_run_is_refused():
    assert read_plan(GOOD, APlan, "r-1", "spool") == PLAN
    words = (
        rf"plan\.json of run r-1 on queue spool was changed: its digest is {PLAN.digest}, it says e"
    )
    with pytest.raises(PlanRefused, match=words):
        read_plan(GOOD | {"planDigest": "e"}, APlan, "r-1", "spool")
    with pytest.raises(PlanRefused, match="is of run r-1 on queue spool, not of run other"):
        read_plan(GOOD, APlan, "other", None)


@pytest.mark.parametrize("made_at", [..., [5], "today", None])
def test_a_plan_that_cannot_be_read_is_refused(made_at):
    decided = {k: v for k, v in PLAN.as_json().items() if k != "madeAt"}
    decided |= {} if made_at is ... else {"madeAt": made_at}
    with pytest.raises(PlanRefused, match=r"plan\.json of run r on queue spool cannot be read"):
        read_plan({"decided": decided, "planDigest": "d"}, APlan, "r", "spool")


def test_the_digest_does_not_hang_on_the_order_of_names():
    one = {"a": 1, "b": [2]}
    assert digest_of(one) == digest_of(dict(reversed(one.items()))) != digest_of({**one, "b": [3]})
