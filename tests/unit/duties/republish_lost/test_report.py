"""What the report of republish_lost says, by the files of the run alone."""

import pytest

from mailslice.duties.republish_lost.duty import DUTY
from mailslice.duties.republish_lost.params import Params
from mailslice.maintenance.runner import step_of
from tests.unit.duties.judging import run_of

PLAN = {
    "planDigest": "d",
    "planned": 3,
    "audit": {"run": "a-1"},
    "skippedBy": {"younger": 1, "held": 1},
    "outcomeUnknown": ["id-7"],
    "message": "3 can be published",
}
APPLIED = {"planned": 3, "failed": 0, "failures": {}, "remaining": 0, "skippedBy": {}}


@pytest.fixture
def report(tmp_path):
    def one(params=None, **applied):
        run = run_of(tmp_path, "republish_lost", params or Params())
        run.folder.write_json("plan.json", PLAN)
        if applied:
            run.folder.write_json("applied.json", {**APPLIED, **applied})
            run.folder.write_json("verify.json", {"success": True})
        return step_of(DUTY, "report")(run)

    return one


def test_what_plan_and_apply_left_out_is_one_sum(report):
    made = report(applied=1, skippedBy={"held": 1}, outcomeUnknown=["id-8"], remaining=1)
    assert (made["status"], made["nbRequeuedMails"], made["left"]) == ("done", 1, 1)
    assert (made["skipped"], made["skippedBy"]) == (3, {"younger": 1, "held": 2})
    assert made["outcomeUnknown"] == ["id-7", "id-8"]
    assert made["message"] == (
        "1 mails published; 2 skipped: held; 1 skipped: younger; 1 left to the next run by "
        "the time "
        "limit; some got no confirm, such as id-7: --repeat-unknown publishes them again"
    )


def test_nothing_published_says_which_audit_left_nothing(report):
    made = report(Params(older_than="2h", accept_duplicates=True), applied=0, outcomeUnknown=[])
    assert (made["status"], made["olderThan"], made["acceptDuplicates"]) == (
        "nothing to do",
        "2h",
        True,
    )
    assert made["message"].startswith("nothing to do: audit a-1 leaves no mail to publish; ")


def test_mails_that_the_time_limit_left_untouched_are_named(report):
    made = report(applied=0, remaining=3)
    assert (made["status"], made["left"]) == ("nothing to do", 3)
    assert made["message"].startswith("no mail was published; ")
    assert "; 3 left to the next run by the time limit" in made["message"]


def test_a_mail_that_cannot_be_encoded_fails_the_run(report):
    made = report(applied=2, failed=1, failures={"id-1": "no JSON"})
    assert (made["status"], made["failures"]) == ("failed", {"id-1": "no JSON"})
    assert made["message"] == "1 of 3 mails failed, such as id-1: no JSON"


def test_a_killed_apply_points_to_the_ledger_of_decisions(report):
    made = report()
    assert (made["status"], made["nbRequeuedMails"]) == ("failed", 0)
    assert "is in the ledger of decisions" in made["message"]
