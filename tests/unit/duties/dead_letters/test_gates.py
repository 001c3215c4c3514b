"""What the gate before dead letters are dealt with stops, by the letters of the plan's file."""

from dataclasses import replace

import pytest

from mailslice.duties.dead_letters.duty import DUTY, LetterPlan
from mailslice.duties.dead_letters.letters import PlannedLetter
from mailslice.duties.dead_letters.params import Params
from mailslice.model.dead_letters import Cause
from tests.unit.duties.judging import NOW, broken, run_of

DROP = PlannedLetter(0, "k0", "drop", "why", "rejected", "id-0", "name", "", 0, 9)
EXPORT = replace(
    DROP, position=1, key="k1", action="export", cause=Cause.BAD_JSON.value, enqueue_id=""
)
REDRIVE = replace(DROP, position=2, key="k2", action="redrive", enqueue_id="id-2")
PARAMS = Params(redrive=True, limit=2, most_redrives=3)


@pytest.fixture
def failing_frames(tmp_path):
    """The columns that fail for these letters, as they are read back from the plan's file."""

    def one(*letters, params=PARAMS, missing=0):
        run = run_of(tmp_path, "dead_letters", params)
        file = run.write_rows("letters", letters, PlannedLetter)
        acted_on = len(letters) + missing
        plan = LetterPlan(
            run="r-1", queue="spool", made_at=NOW, letters=file, acted_on=acted_on, unseen=0
        )
        return broken(*DUTY.check(run, plan))

    return one


def test_drops_exports_and_redrives_within_the_limits_pass(failing_frames):
    assert failing_frames(DROP, EXPORT, REDRIVE) == set()
    assert failing_frames() == set()


@pytest.mark.parametrize(
    ("letters", "columns"),
    [
        ([DROP, replace(EXPORT, position=0)], {"position"}),
        ([replace(DROP, action="burn")], {"action"}),
        ([replace(EXPORT, cause="rejected", enqueue_id="id-1")], {"mail_exported"}),
        ([replace(EXPORT, action="drop")], {"no_mail_moved"}),
        ([REDRIVE, replace(REDRIVE, position=3)], {"enqueue_id"}),
        ([replace(REDRIVE, redrives=3)], {"redrives"}),
        (
            [replace(REDRIVE, position=at, enqueue_id=f"id-{at}") for at in range(3)],
            {"redriven"},
        ),
    ],
)
def test_each_rule_fails_by_letters_of_the_plans_file(failing_frames, letters, columns):
    assert failing_frames(*letters) == columns


@pytest.mark.parametrize("letters", [(), (DROP, REDRIVE)])
def test_letters_that_the_plan_counts_and_its_file_lacks_fail(failing_frames, letters):
    assert failing_frames(*letters, missing=1) == {"rows"}


def test_nothing_is_redriven_where_nobody_asked_for_it(failing_frames):
    assert failing_frames(REDRIVE, params=Params(most_redrives=3)) == {"redriven"}
