"""A plan of stuck_mails.

Read as it was made, refused when it was touched, judged only where it decides; and the params.
"""

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from mailslice.duties.stuck_mails.duty import DUTY
from mailslice.duties.stuck_mails.mails import DeadRecord, PlannedMail, StuckPlan
from mailslice.duties.stuck_mails.params import Params
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.plan import load_plan
from mailslice.maintenance.runner import step_of
from mailslice.model.errors import BadInput, PlanRefused
from mailslice.model.settings import StuckMode
from tests.unit.duties.judging import NOW, run_of

MAIL = PlannedMail(uuid4(), 'n"é', "h:1:x", "loaded", 1, NOW, 700.003, "closed")
MAILS = [MAIL, replace(MAIL, enqueue_id=uuid4())]


@pytest.fixture
def run(tmp_path):
    return run_of(tmp_path, "stuck_mails", Params())


def written(run, *mails, change=lambda _: None):
    """A run whose plan step made this plan; `change` touches what is in plan.json."""
    plan = StuckPlan(
        run="r-1",
        queue="spool",
        made_at=NOW,
        mode=StuckMode.CLOSE,
        lock_timeout=timedelta(minutes=10),
        mails=run.write_rows("mails", mails, PlannedMail),
        dead=(DeadRecord("h:2:y", 9, 3),),
    )
    summary = {"decided": plan.as_json(), "planDigest": plan.digest, "started": iso(NOW)}
    change(summary["decided"])
    run.folder.write_json("plan.json", summary)
    return plan


def test_a_plan_is_read_as_it_was_made(run):
    made = written(run, *MAILS)
    assert load_plan(run, StuckPlan) == made
    assert run.read_rows(made.mails, PlannedMail) == MAILS


@pytest.mark.parametrize(
    "touch",
    [
        lambda value: value["mails"].update(rows=1),
        lambda value: value["mails"].update(digest="0"),
        lambda value: value.update(lockTimeout=1.0),
        lambda value: value.update(mode="recover"),
        lambda value: value["dead"].append(["h:1:x", 7, 1]),
        lambda value: value.pop("mails"),
        lambda value: value.update(mode="other"),
        lambda value: value.update(run="other"),
        lambda value: value.update(queue="other"),
    ],
)
def test_a_plan_that_was_touched_is_refused(run, touch):
    written(run, *MAILS, change=touch)
    with pytest.raises(PlanRefused):
        load_plan(run, StuckPlan)


def test_a_mail_that_was_touched_is_refused(run):
    made = written(run, *MAILS)
    run.write_rows("mails", [replace(MAIL, action="completed"), MAILS[1]], PlannedMail)
    with pytest.raises(PlanRefused, match="was changed"):
        run.read_rows(made.mails, PlannedMail)


def test_a_plan_that_decides_about_no_mail_needs_no_gate_and_is_applied(run):
    made = written(run)
    assert made.has_work
    assert step_of(DUTY, "check")(run)["expectations"] == []


@pytest.mark.parametrize(
    "given",
    [
        {"lock_timeout": "0s"},
        {"lock_timeout": "999ms"},
        {"lock_timeout": "-5m"},
        {"lock_timeout": "soon"},
        {"lock_timeout": "40000d"},
        {"lock_timeout": "99999999999999w"},
        {"mode": "kill"},
        {"mode": ""},
        {"most": 0},
        {"nonsense": 1},
    ],
)
def test_params_that_cannot_be_are_refused(given):
    with pytest.raises(BadInput) as refused:
        Params.parse(given)
    assert "timedelta" not in str(refused.value)


def test_the_least_lock_timeout_is_said_as_people_write_it():
    with pytest.raises(BadInput, match="lock_timeout='0s': allowed: 1s or more"):
        Params.parse({"lock_timeout": "0s"})


def test_params_as_people_write_them():
    assert (
        Params.parse({"lock_timeout": "30m", "mode": "shadow"}).as_json()["lock_timeout"] == "30m"
    )
    assert Params.parse({"lock_timeout": "PT1H"}).lock_timeout == timedelta(hours=1)
    assert Params.parse({}).mode is None
    assert Params.parse({"mode": "recover"}).mode is StuckMode.RECOVER
