"""The five steps of a duty: what the runner keeps, refuses and reports, whatever it is about."""

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace

import pytest

from mailslice.checks.expectations import Expectation, Frame
from mailslice.engine.row_files import RowFile
from mailslice.maintenance import gates, runner
from mailslice.maintenance.artifacts import FILES, RunFolder
from mailslice.maintenance.duty import Duty, ReportDuty
from mailslice.maintenance.lock import LockHeld
from mailslice.maintenance.params import DutyParams
from mailslice.maintenance.plan import QueuePlan
from mailslice.maintenance.progress import SAVE_EVERY
from mailslice.maintenance.result import PROGRESS
from mailslice.model.errors import GateFailed, PlanRefused, StoreUnavailable, TryAgain
from tests.services.duties.running import judged_plainly
from tests.unit.duties.judging import NOW, Locks, run_of


@dataclass(frozen=True)
class Letter:
    name: str
    size: int


class LetterPlan(QueuePlan):
    letters: RowFile
    grace: timedelta = timedelta(hours=1)

    @property
    def planned(self):
        return self.letters.rows


class Burn(Duty[LetterPlan]):
    """Burns the letters of `there`; `events` says what it came to."""

    plan_type = LetterPlan
    kinds = ("burned", "buried")
    bulky = frozenset({"names"})

    def __init__(self):
        self.there = ["a", "b", "c"]
        self.stray = self.stop = None
        self.events = []
        self.changed = {}

    def plan(self, run):
        letters = [Letter(name, 1) for name in self.there]
        file = run.write_rows("letters", letters, Letter)
        if self.stray:
            run.folder.artifacts.write(run.folder.file(self.stray), b"x")
        run.report(bytes=len(letters), names=self.there, message=f"{len(letters)} letters")
        return LetterPlan(run="r-1", queue="spool", made_at=NOW, letters=file)

    def check(self, run, plan):
        rows = [{"size": letter.size} for letter in run.read_rows(plan.letters, Letter)]
        rule = Expectation.between("size", 0, 1, "No letter is heavy.")
        return [Frame("letters", rows, [rule], may_be_empty=True)]

    def apply(self, run, plan, progress):
        self.events.append(dict(progress.earlier))
        for letter in run.read_rows(plan.letters, Letter):
            if run.out_of_time():
                return
            run.require_lock()
            if letter.name in self.changed:
                progress.skip(self.changed[letter.name])
            elif letter.name == self.stop:
                raise StoreUnavailable("the fire is out")
            else:
                self.there.remove(letter.name)
                progress.done("burned")
            run.report(last=letter.name)

    def verify(self, run, plan, result):
        rule = Expectation.equal("there", result.not_done, "Only what was not burned is there.")
        return [Frame("after", [{"there": len(self.there)}], [rule])]

    def describe(self, steps):
        result = steps.result
        return ", ".join([f"{result.applied} burned", *result.rest()]) if result.touched else ""


@pytest.fixture
def duty():
    return Burn()


@pytest.fixture
def locks():
    return Locks()


@pytest.fixture
def take(tmp_path, duty, locks, monkeypatch):
    """Takes steps as the runner does: their files are written, the last summary is given."""

    def gate(name, frames, docs, *_):
        for one in judged_plainly(name, frames, docs).findings:
            if not one.success:
                raise GateFailed(f"{one.sentence} ({one.column})")
        return judged_plainly(name, frames, docs)

    monkeypatch.setattr(gates, "run_gate", gate)

    def steps(*names, now=NOW, params=None, of=duty):
        summary = {}
        for name in names:
            context = run_of(
                tmp_path,
                "burn",
                params or DutyParams(),
                clock=lambda: now,
                stores=SimpleNamespace(records=SimpleNamespace(locks=locks)),
            )
            summary = runner.step_of(of, name)(context)
            context.folder.write_json(FILES[name], {**summary, "step": name, "seconds": 1})
        return summary

    steps.folder = run_of(tmp_path, "burn").folder
    return steps


def test_a_run_from_plan_to_report(take, duty, locks):
    report = take("plan", "check", "apply", "verify", "report")
    assert duty.there == []
    assert locks.taken == ["burn/spool", "released"]
    assert {name: report[name] for name in ("status", "message", "planned", "applied")} == {
        "status": "done",
        "message": "3 burned",
        "planned": 3,
        "applied": 3,
    }
    assert (report["burned"], report["buried"], report["bytes"], report["last"]) == (3, 0, 3, "c")
    assert (report["skipped"], report["failed"], report["remaining"], report["left"]) == (0,) * 4
    assert not {"names", "decided", "step", "seconds"} & report.keys()
    assert report["planDigest"] == take.folder.read_json("plan.json")["planDigest"]


def test_a_plan_that_was_killed_has_failed_and_changed_nothing(take):
    report = take("report")
    assert (report["status"], report["message"]) == (
        "failed",
        "plan did not end: it changes nothing",
    )
    assert (report["planned"], report["applied"]) == (0, 0)


def test_the_plan_is_json_that_is_held_against_its_digest(take):
    take("plan")
    plan = take.folder.read_json("plan.json")
    assert plan["decided"]["madeAt"] == "2026-11-22T12:00:00Z"
    assert plan["decided"]["grace"] == 3600.0
    assert plan["decided"]["letters"]["file"] == "plan/letters.parquet"


@pytest.mark.parametrize("step", ["check", "apply", "verify"])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"grace": 1.0}, "was changed"),
        ({"queue": "other"}, "was changed"),
        ({"madeAt": "2026-11-22T12:00:00"}, r"cannot be read.*madeAt"),
        ({"more": 1}, r"cannot be read.*more"),
        ({"letters": {"file": "plan/letters.parquet", "rows": 9}}, "cannot be read.*digest"),
    ],
)
def test_a_plan_that_was_edited_is_refused_by_every_step(take, duty, step, change, problem):
    take("plan", "check", "apply", "verify")
    plan = take.folder.read_json("plan.json")
    duty.there = ["a"]
    take.folder.write_json("plan.json", {**plan, "decided": {**plan["decided"], **change}})
    with pytest.raises(PlanRefused, match=problem):
        take(step)
    assert duty.there == ["a"]


def test_a_plan_of_another_run_or_queue_is_refused(take):
    take("plan")
    plan = LetterPlan(run="r-2", queue="spool", made_at=NOW, letters=RowFile("f", 0, "0-0-0"))
    summary = {"decided": plan.as_json(), "planDigest": plan.digest}
    take.folder.write_json("plan.json", summary)
    with pytest.raises(PlanRefused, match="the plan is of run r-2"):
        take("check")


def test_apply_needs_a_young_plan_that_the_gate_passed(take):
    take("plan")
    with pytest.raises(PlanRefused, match="the step check comes first"):
        take("apply")
    with pytest.raises(GateFailed, match=r"not older than 24 hours.*age_hours"):
        take("check", now=NOW + timedelta(hours=25))
    take("check")
    with pytest.raises(PlanRefused, match=r"25\.0 h old"):
        take("apply", now=NOW + timedelta(hours=25))
    check = take.folder.read_json("check.json")
    take.folder.write_json("check.json", {**check, "planDigest": "of another plan"})
    with pytest.raises(PlanRefused, match="check comes first"):
        take("apply")


def test_a_plan_without_work_takes_no_lock_and_is_not_applied(take, duty, locks):
    duty.there = []
    report = take("plan", "check", "apply", "verify", "report")
    assert (report["status"], report["message"], report["burned"]) == (
        "nothing to do",
        "0 letters",
        0,
    )
    assert (locks.taken, duty.events) == ([], [])


def test_what_apply_waits_for_first_holds_no_lock_up(take, duty, locks, monkeypatch):
    taken = []
    monkeypatch.setattr(duty, "before_lock", lambda *_: taken.append(list(locks.taken)))
    take("plan", "check", "apply")
    assert taken == [[]]
    assert locks.taken == ["burn/spool", "released"]


def test_what_changed_since_the_plan_is_skipped_by_reason_and_no_failure(take, duty):
    duty.changed = {"a": "live again", "b": "live again"}
    report = take("plan", "check", "apply", "verify", "report")
    assert (report["applied"], report["skipped"], report["skippedBy"]) == (1, 2, {"live again": 2})
    assert (report["status"], report["message"]) == ("done", "1 burned, 2 skipped: live again")


def test_what_the_time_limit_leaves_remains(take, duty):
    report = take(
        "plan", "check", "apply", "verify", "report", params=DutyParams(time_limit=timedelta(0))
    )
    assert (report["remaining"], report["left"], report["skipped"]) == (3, 3, 0)
    assert duty.there == ["a", "b", "c"]


def test_an_error_leaves_what_was_done_for_the_report_and_for_the_next_try(take, duty):
    take("plan", "check")
    duty.stop = "c"
    with pytest.raises(StoreUnavailable):
        take("apply")
    early = runner.partial_report(duty, take.folder)
    assert (early["applied"], early["remaining"], early["last"]) == (2, 1, "b")
    report = take("report")
    assert (report["status"], report["applied"]) == ("failed", 2)
    assert report["message"] == "apply did not end: what it left is found by the next run"
    duty.there, duty.stop = ["a", "b", "c"], None
    assert take("apply")["burned"] == 3  # its own count, not that of the first try
    assert duty.events[0] == {}
    assert duty.events[1]["applied"] == 2


def test_what_a_first_try_reported_survives_a_second_that_comes_to_nothing(take, duty):
    take("plan", "check")
    duty.stop = "c"
    with suppress(StoreUnavailable):
        take("apply")
    duty.there, duty.stop = ["c"], "a"
    with suppress(StoreUnavailable):
        take("apply")
    with suppress(StoreUnavailable):
        take("apply")
    assert [earlier.get("last") for earlier in duty.events] == [None, "b", "b"]


def test_a_try_that_fails_at_once_leaves_the_counts_of_the_one_that_got_further(take, duty):
    take("plan", "check")
    duty.stop = "c"
    with suppress(StoreUnavailable):
        take("apply")
    duty.apply = fails_at_once
    with suppress(StoreUnavailable):
        take("apply")
    saved = take.folder.read_json(PROGRESS)
    assert (saved["applied"], saved["burned"], saved["remaining"]) == (2, 2, 1)
    assert (saved["last"], saved["cause"]) == ("b", "the lock")
    report = runner.partial_report(duty, take.folder)
    assert (report["applied"], report["remaining"]) == (2, 1)


def fails_at_once(run, _plan, progress):
    run.report(cause="the lock")
    progress.save()
    raise StoreUnavailable("the fire is out")


def test_a_try_that_ends_has_counts_of_its_own_however_few(take, duty):
    take("plan", "check")
    duty.stop = "c"
    with suppress(StoreUnavailable):
        take("apply")
    take("apply", params=DutyParams(time_limit=timedelta(0)))
    saved = take.folder.read_json(PROGRESS)
    assert (saved["applied"], saved["remaining"]) == (0, 3)


def test_progress_is_saved_more_rarely_the_longer_a_save_takes(take, duty, monkeypatch):
    take("plan", "check")
    saves = []

    def save_slowly(folder, name, value, write=RunFolder.write_json):
        saves.append(name)
        time.sleep(0.02 if name == PROGRESS else 0)
        write(folder, name, value)

    def burn_much(_run, _plan, progress):
        for _ in range(50):
            progress.done("burned", SAVE_EVERY)

    monkeypatch.setattr(RunFolder, "write_json", save_slowly)
    duty.apply = burn_much
    take("apply")
    assert 2 <= saves.count(PROGRESS) < 10  # at the start, at the end, and seldom in between
    assert take.folder.read_json(PROGRESS)["applied"] == 50 * SAVE_EVERY


def test_what_an_earlier_plan_came_to_is_nothing_to_go_by(take, duty):
    take("plan", "check")
    duty.stop = "a"
    with suppress(StoreUnavailable):
        take("apply")
    take.folder.write_json(PROGRESS, {"planDigest": "another", "applied": 7})
    duty.stop = None
    take("apply")
    assert duty.events[1] == {}


def test_a_plan_that_is_made_again_starts_from_nothing_but_what_is_retained(take, duty):
    take("plan", "check", "apply", "verify")
    for name in ("request.json", "approval.json"):
        take.folder.write_json(name, {})
    take.folder.artifacts.write(take.folder.file("plan/recorded.parquet"), b"x")
    duty.retained = lambda _: ["plan/recorded.parquet"]
    duty.there, duty.stray = ["d"], "plan/of-a-task-that-was-tried-again.parquet"
    take("plan")
    left = {
        file.removeprefix(f"{take.folder.name}/")
        for file in take.folder.artifacts.files(take.folder.name)
    }
    assert left == {
        *("plan.json", "plan/letters.parquet", "plan/recorded.parquet"),
        *("request.json", "approval.json"),
    }


def test_a_plan_that_fails_leaves_no_file_but_what_is_retained(take, duty, monkeypatch):
    """A disk that is full would stay so."""
    monkeypatch.setattr(duty, "retained", lambda _: ["plan/recorded.parquet"])
    take.folder.artifacts.write(take.folder.file("plan/recorded.parquet"), b"x")
    plan = duty.plan

    def fails(run):
        plan(run)
        raise StoreUnavailable("the letters are away")

    monkeypatch.setattr(duty, "plan", fails)
    with pytest.raises(StoreUnavailable, match="the letters are away"):
        take("plan")
    recorded = take.folder.file("plan/recorded.parquet")
    assert take.folder.artifacts.files(take.folder.name) == [recorded]


def test_a_file_of_the_plan_that_was_changed_or_removed_is_refused(take):
    take("plan", "check")
    file = take.folder.file("plan/letters.parquet")
    other = run_of_rows(take, [Letter("x", 1)] * 3)
    with pytest.raises(PlanRefused, match=r"letters\.parquet of the plan was changed"):
        take("apply")
    assert other.rows == 3
    take.folder.artifacts.remove(file)
    with pytest.raises(PlanRefused, match=r"letters\.parquet of the plan cannot be read"):
        take("check")


def run_of_rows(take, rows):
    from mailslice.maintenance.row_file import write_rows

    folder = take.folder
    return write_rows(folder.artifacts, folder.name, "plan/letters.parquet", rows, Letter)


def test_a_dry_run_says_what_the_plan_comes_to(take):
    report = take("plan", "check", "report", params=DutyParams(dry_run=True))
    assert (report["status"], report["message"]) == (
        "dry run",
        "dry run, nothing was changed: 3 letters",
    )
    assert (report["planned"], report["applied"], report["remaining"]) == (3, 0, 0)


def test_a_verify_that_did_not_end_and_items_that_failed_fail_the_run(take, duty):
    take("plan", "check", "apply")
    assert take("report")["message"].startswith("verify did not end")
    duty.there = ["a", "b"]
    duty.apply = lambda _run, _plan, progress: progress.fail("a", "it is wet")
    report = take("plan", "check", "apply", "report")
    assert (report["status"], report["message"]) == (
        "failed",
        "1 of 2 items failed, such as a: it is wet",
    )
    assert (report["failed"], report["failures"], report["remaining"]) == (1, {"a": "it is wet"}, 1)


def test_what_an_earlier_try_of_a_step_said_does_not_stand_for_one_that_ended_early(take, duty):
    take("plan", "check", "apply", "verify")
    duty.there = ["a"]
    with pytest.raises(GateFailed):
        take("verify")
    assert take("report")["message"].startswith("verify did not end")
    duty.there, duty.stop = ["a", "b", "c"], "b"
    with pytest.raises(StoreUnavailable):
        take("apply")
    report = take("report")
    # The first try burned three; the second had come to one.
    assert (report["status"], report["applied"]) == ("failed", 3)
    assert report["message"].startswith("apply did not end")
    with pytest.raises(GateFailed):
        take("check", now=NOW + timedelta(hours=25))
    with pytest.raises(PlanRefused, match="check comes first"):
        take("apply")


def test_what_is_locked_when_all_is_done_is_tried_again(take, duty):
    take("plan", "check", "apply")

    def held(*_):
        raise LockHeld("somebody works")

    duty.verify = held
    with pytest.raises(TryAgain, match="somebody works"):
        take("verify")


def test_nothing_is_judged_of_work_only_by_mistake(take, duty):
    take("plan")
    duty.check = lambda *_: []
    with pytest.raises(RuntimeError, match="judges nothing of 3 planned items"):
        take("check")
    duty.there = []
    take("plan")
    assert take("check")["success"]


def test_nothing_is_verified_of_what_was_done_only_by_mistake(take, duty):
    take("plan", "check", "apply")
    duty.verify = lambda *_: []
    with pytest.raises(RuntimeError, match="verifies nothing"):
        take("verify")


def test_a_change_without_the_lock_is_a_mistake(tmp_path):
    with pytest.raises(RuntimeError, match="without a lock"):
        run_of(tmp_path, "burn").require_lock()


class Weigh(ReportDuty[LetterPlan]):
    """Only reads."""

    plan_type = LetterPlan

    def plan(self, run):
        run.report(size=7, message="7 grams")
        file = run.write_rows("letters", [Letter("a", 7)], Letter)
        return LetterPlan(run="r-1", queue="spool", made_at=NOW, letters=file)

    def check(self, run, plan):
        rule = Expectation.equal("rows", 1, "One letter was weighed.")
        return [Frame("letters", [{"rows": plan.planned}], [rule])]

    def publish(self, run, plan):
        run.report(metrics=f"{plan.planned} letters", applied=1)

    def verify(self, run, plan, result):
        rule = Expectation.equal("published", 1, "It was published.")
        return [Frame("published", [{"published": int("metrics" in result.fields)}], [rule])]

    def describe(self, steps):
        return f"{steps.plan['size']} grams"


def test_a_duty_that_only_reads_measures_and_publishes_without_lock_or_progress(take, locks):
    report = take("plan", "check", "apply", "verify", "report", of=Weigh())
    assert (report["status"], report["message"], report["metrics"]) == (
        "done",
        "7 grams",
        "1 letters",
    )
    assert (report["planned"], report["applied"], report["left"]) == (1, 1, 0)
    assert locks.taken == []
    assert take.folder.read_json(PROGRESS) is None
