"""A plan of stuck_mails: read as it was made, refused when it was touched; and the params."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mailslice.duties.stuck_mails.params import Params
from mailslice.duties.stuck_mails.plan_file import DeadRecord, Plan, PlannedMail, read_plan
from mailslice.model.errors import BadInput, PlanRefused
from mailslice.model.settings import StuckMode

NOW = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)


def plan():
    mail = PlannedMail(
        uuid4(),
        'n"é',
        "h:1:x",
        "loaded",
        1,
        NOW,
        timedelta(seconds=700, milliseconds=3),
        "closed",
    )
    dead = (DeadRecord("h:2:y", 9, 3),)
    return Plan(
        "r",
        "q",
        NOW,
        StuckMode.CLOSE,
        timedelta(minutes=10),
        (mail, replace(mail, enqueue_id=uuid4())),
        dead,
    )


def summary(made):
    return {"decided": made.decided(), "planDigest": made.digest}


def test_a_plan_is_read_as_it_was_made():
    made = plan()
    assert read_plan(summary(made), "r", "q") == made


@pytest.mark.parametrize(
    "touch",
    [
        lambda value: value["mails"].pop(),
        lambda value: value["mails"][0].update(action="completed"),
        lambda value: value["mails"][0].update(enqueueId=str(uuid4())),
        lambda value: value.update(lockTimeoutMs=1),
        lambda value: value.update(mode="recover"),
        lambda value: value["dead"].append(["h:1:x", 7, 1]),
        lambda value: value.pop("mails"),
        lambda value: value.update(mode="other"),
        lambda value: value["mails"][0].update(enqueueId="x"),
    ],
)
def test_a_plan_that_was_touched_is_refused(touch):
    told = summary(plan())
    touch(told["decided"])
    with pytest.raises(PlanRefused):
        read_plan(told, "r", "q")


@pytest.mark.parametrize(("run", "queue"), [("other", "q"), ("r", "other")])
def test_a_plan_of_another_run_or_queue_is_refused(run, queue):
    with pytest.raises(PlanRefused, match="not of run"):
        read_plan(summary(plan()), run, queue)


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
    with pytest.raises(BadInput):
        Params.parse(given)


def test_params_as_people_write_them():
    assert (
        Params.parse({"lock_timeout": "30m", "mode": "shadow"}).as_json()["lock_timeout"] == "30m"
    )
    assert Params.parse({"lock_timeout": "PT1H"}).lock_timeout == timedelta(hours=1)
    assert Params.parse({}).mode_or(StuckMode.SHADOW) is StuckMode.SHADOW
    assert Params.parse({"mode": "recover"}).mode_or(StuckMode.SHADOW) is StuckMode.RECOVER
