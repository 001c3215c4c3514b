"""What the report of stuck_mails says, by the files of the run alone."""

from types import SimpleNamespace

import pytest

from mailslice.duties.stuck_mails import work
from mailslice.duties.stuck_mails.duty import DUTY
from mailslice.duties.stuck_mails.params import Params
from mailslice.maintenance.runner import partial_report, step_of
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from tests.unit.duties.judging import run_of

SEEN = "9 in flight, 3 beyond the lock timeout of 10m (p99 is 2 s)"
PLAN = {"planDigest": "d", "planned": 3, "inFlight": 9, "mode": "close", "message": SEEN}
VERIFIED = {"success": True, "quarantined": 4}
NOTHING = {"skippedBy": {}, "failed": 0, "failures": {}, "remaining": 0}
ENTRIES = [{"enqueueId": str(number), "bytes": 5} for number in range(300)]


@pytest.fixture
def report(tmp_path):
    """The report of a run whose steps left these files."""

    def one(plan=None, applied=None, unusual=10):
        settings = Settings()
        duty = settings.duty.model_copy(update={"stuck_alert_from": unusual})
        run = run_of(
            tmp_path,
            "stuck_mails",
            Params(),
            settings=settings.model_copy(update={"duty": duty}),
            stores=SimpleNamespace(),
        )
        run.folder.write_json("plan.json", {**PLAN, "mails": ENTRIES[:3], **(plan or {})})
        if applied is not None:
            run.folder.write_json("applied.json", {"planned": 3, **NOTHING, **applied})
            run.folder.write_json("verify.json", VERIFIED)
        return step_of(DUTY, "report")(run)

    return one


def applied(**fields):
    return {"decisions": [], "alarms": [], "discardedRecords": 0, "unswept": None, **fields}


def test_what_was_decided(report):
    counts = {"applied": 2, "closed": 1, "failedMails": 1, "skippedBy": {"marked meanwhile": 1}}
    made = report(applied=applied(**counts, decisions=ENTRIES, discardedRecords=2))
    assert (made["status"], made["message"]) == (
        "done",
        f"{SEEN}: 1 closed, 1 failed, 2 records of dead workers discarded",
    )
    fields = ("closed", "failed", "errorCount", "noted", "skipped", "bytes", "quarantined", "left")
    assert [made[name] for name in fields] == [1, 1, 0, 0, 1, 1500, 4, 0]
    assert (made["mails"], "decisions" in made) == (ENTRIES[:200], False)


def test_shadow_mode_notes_and_skips_nothing(report):
    skipped = {"noted": 2, "marked meanwhile": 1}
    made = report({"mode": "shadow"}, applied(skippedBy=skipped, decisions=ENTRIES))
    assert (made["status"], made["message"]) == (
        "done",
        f"shadow mode, nothing was changed: {SEEN}",
    )
    fields = ("noted", "applied", "skipped", "skippedBy", "left")
    assert [made[name] for name in fields] == [2, 0, 1, {"marked meanwhile": 1}, 0]
    assert len(made["mails"]) == 300


def test_shadow_mode_discards_nothing_and_may_find_nothing(report):
    made = report({"mode": "shadow"}, {"decisions": [], "alarms": []})
    assert (made["status"], made["message"]) == ("nothing to do", f"{SEEN}: nothing to do")
    assert (made["noted"], made["discardedRecords"]) == (0, 0)


def test_a_mail_that_could_not_be_acted_on_and_an_alarm_are_errors(report):
    error = {"failed": 1, "failures": {"id-1": "refused"}, "applied": 2, "closed": 2}
    made = report(applied=applied(**error, alarms=["id-2 was withdrawn"]))
    assert (made["status"], made["errorCount"], made["failed"]) == ("failed", 2, 0)
    assert made["errors"] == ["id-1: refused", "id-2 was withdrawn"]
    assert made["message"] == "2 of 3 stuck mails could not be acted on, such as id-1: refused"


def test_what_is_unusual_and_copies_that_stay_are_said_in_any_message(report):
    made = report(applied=applied(remaining=3, unswept="2 objects are left"), unusual=3)
    assert made["status"] == "nothing to do"
    words = (
        f"{SEEN}: nothing to do; 3 are left to the next run; {made['alert']}; 2 objects are left"
    )
    assert made["message"] == words
    assert made["alert"].startswith("unusual: 3 mails are stuck in one run, 3 are")


def test_a_run_that_did_not_come_to_act_shows_what_it_planned_and_hides_no_earlier_note(report):
    made = report()
    assert (made["status"], made["mails"], "noted" in made) == ("failed", ENTRIES[:3], False)
    assert made["message"] == "apply did not end: the next run finishes it"


def test_before_the_plan_there_is_nothing_to_report(tmp_path):
    run = run_of(tmp_path, "stuck_mails", Params())
    fields = partial_report(DUTY, run.folder)
    assert (fields["inFlight"], fields["mails"], fields["quarantined"]) == (None, [], None)


@pytest.mark.parametrize(("dry", "limits"), [(0, [20]), (19, [20]), (20, [20, 200])])
def test_a_shadow_report_is_found_behind_runs_that_did_not_come_to_apply(monkeypatch, dry, limits):
    """Two hundred reports are read only if the newest twenty have none."""
    asked = []
    shadow = {"mode": "shadow", "run": "r", "who": "w", "finished": "t", "noted": 1}
    reports = [{"mode": "shadow"}] * dry + [shadow | {"mails": [{"name": "a"}]}]

    def listed(_ledger, _duty, _queue, limit):
        asked.append(limit)
        return reports[:limit]

    monkeypatch.setattr(work.Ledger, "list", listed)
    stores = SimpleNamespace(settings=Settings())
    (mail,) = work.shadow_report_mails(stores, QueueName("spool"))
    assert (mail["name"], mail["run"], asked) == ("a", "r", limits)
