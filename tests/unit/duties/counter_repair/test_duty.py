"""The duty without stores: what its gate refuses, what its plan holds, what its reports say."""

import threading
import uuid
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest

from mailslice.checks.expectations import Frame
from mailslice.duties.counter_repair import decide, differences, planned
from mailslice.duties.counter_repair.corrections import (
    DONE,
    FAILED,
    NOT_REACHED,
    SKIPPED,
    THREADS,
    UNKNOWN,
    CounterWork,
    MailboxCorrector,
    MailboxOutcome,
)
from mailslice.duties.counter_repair.differences import ComparisonSpec
from mailslice.duties.counter_repair.duty import DUTY, CounterRepair
from mailslice.duties.counter_repair.fingerprints import MessageDigest
from mailslice.duties.counter_repair.gates import corrected as judged_after
from mailslice.duties.counter_repair.gates import read_after
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.planned import CounterPlan, Difference, Drift, ScanFacts
from mailslice.duties.counter_repair.survey import Totals, drift_of, survey
from mailslice.engine.row_files import RowFile
from mailslice.maintenance import runner
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Summaries
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.errors import GateFailed, PlanRefused, TryAgain
from mailslice.stores.cassandra.mailboxes import Counters
from mailslice.stores.cassandra.own import CounterClaim
from tests.services.duties.running import without_pages
from tests.unit.duties.judging import IN_PROCESS, run_of

AN_ID = "5f1c0e50-c6f9-11f0-8de9-0242ac120002"
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
FACTS = ScanFacts(ranges=8, read=8, twice=0, holes=0, mailboxes=200, messages=2000, projected=2000)
DRIFT = Drift.of(uuid.UUID(AN_ID), Counters(1, 1), MessageDigest(2, 1))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A step over files in a folder: no stores, no Spark, no pages."""
    monkeypatch.setattr("mailslice.maintenance.gates.usual", lambda _: None)
    params = Params.parse({})
    return run_of(
        tmp_path, "counter_repair", params, NO_QUEUE, engine=IN_PROCESS, evaluator=without_pages
    )


def difference(kind="flagsDiffer", mailbox=AN_ID, uid=1, message=None):
    return Difference(kind, mailbox, uid, message, *[None] * 6)


ONE_ROW = (difference(),)


def plan_of(run, drifts=(DRIFT,), differences=ONE_ROW, **more):
    """A plan with files of these rows; `more` of its fields and of its scan."""
    facts = {name: more.pop(name) for name in list(more) if name in ScanFacts.model_fields}
    fields = {
        "settle": timedelta(minutes=5),
        "trust_projection": False,
        "repair_projection": True,
        "inconsistencies": {},
        "made_at": NOW,
        **more,
    }
    file = run.write_rows("differences-1", differences, Difference)
    return CounterPlan(
        run="r-1",
        read_at=NOW,
        drifts=run.write_rows("drifts", drifts, Drift),
        differences=(file,) if file.rows else (),
        scan=FACTS.model_copy(update=facts),
        **fields,
    )


def write_plan(run, plan):
    run.folder.write_json(
        "plan.json",
        {"decided": plan.as_json(), "planDigest": plan.digest, "planned": plan.planned},
    )


def run_gate(run, plan):
    """The step check over this plan."""
    write_plan(run, plan)
    return runner.step_of(DUTY, "check")(run)


def test_a_plan_that_adds_up_passes(run):
    checked = run_gate(run, plan_of(run))
    assert (checked["success"], checked["planned"]) == (True, 1)


def test_a_plan_without_a_drift_is_judged_too(run):
    assert run_gate(run, plan_of(run, [], []))["success"]
    with pytest.raises(GateFailed, match="Every token range of every table was read"):
        run_gate(run, plan_of(run, [], [], read=7))


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"read": 7}, "Every token range of every table was read"),
        ({"twice": 1}, "No token range was counted twice"),
        ({"holes": 1}, "tile the ring"),
        ({"messages": 999}, "the truth was lost"),
    ],
)
def test_a_scan_that_was_not_whole_is_refused_by_the_sentence(run, facts, sentence):
    with pytest.raises(GateFailed, match=sentence):
        run_gate(run, plan_of(run, **facts))


def test_a_truth_that_is_not_read_is_not_compared(run):
    assert run_gate(run, plan_of(run, trust_projection=True, messages=0))["success"]


class LostFile:
    """A scan of three rows of the truth, of which two are in files, or four."""

    totals = Totals(1, 0, 1, 0, 0, 0, truth=3)

    def __init__(self, rows):
        self.rows = rows

    def ranges(self):
        return []

    def wrong(self):
        return iter(())

    def inconsistent(self):
        return {uuid.UUID(AN_ID).bytes: False}

    def truth(self):
        return [RowFile("plan/truth-1.parquet", self.rows, "d")]

    def close(self):
        pass


@pytest.mark.parametrize("rows", [2, 4])
def test_files_that_an_executor_took_along_or_that_came_twice_are_not_compared(run, rows):
    """A task that Spark runs anew names its file anew, and the shuffle goes by names."""
    metadata = SimpleNamespace(partitioner="", token_map=None)
    stores = SimpleNamespace(
        cassandra=SimpleNamespace(cluster=SimpleNamespace(metadata=metadata)),
        mailboxes=SimpleNamespace(has_modseqs=False),
    )
    files = []

    def compare(_spark, _spec, truth):
        files.extend(truth)
        return (), {}

    def survey_of(rows):
        scan = lambda *_, **__: LostFile(rows)
        return survey(replace(run, stores=stores), lambda _: None, scan=scan, compare=compare)

    with pytest.raises(TryAgain, match="a Spark executor was lost during the scan"):
        survey_of(rows)
    assert not files
    survey_of(3)
    assert files


def drift(stored, seen):
    return Drift.of(uuid.uuid4(), Counters(*stored), MessageDigest(*seen))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({"drifts": [DRIFT, DRIFT]}, "Every mailbox is listed once"),
        ({"drifts": [DRIFT, drift((2, 1), (2, 1))]}, "Every mailbox that is listed has a drift"),
        ({"drifts": [drift((2, 1), (2, 3))]}, "more unseen messages than messages"),
        ({"drifts": [drift((2, 1), (2, -1))]}, "fewer than no unseen messages"),
        (
            {"differences": [difference(), difference("other")]},
            "differs does so in a known way",
        ),
    ],
)
def test_a_row_of_the_plans_files_that_cannot_be_is_refused(run, rows, sentence):
    with pytest.raises(GateFailed, match=sentence):
        run_gate(run, plan_of(run, **rows))


def test_too_large_a_share_of_all_counters_is_refused_but_not_of_a_few(run):
    twenty, more = ([drift((9, 1), (2, 1)) for _ in range(count)] for count in (20, 21))
    assert run_gate(run, plan_of(run, twenty, mailboxes=30))["success"]
    assert run_gate(run, plan_of(run, more, mailboxes=200))["success"]
    with pytest.raises(GateFailed, match=r"At most 0\.2 of all mailboxes"):
        run_gate(run, plan_of(run, more, mailboxes=100))


@pytest.mark.parametrize(
    ("missing", "projected", "more", "passes"),
    [
        (400, 1000, {}, False),
        (400, 1000, {"repair_projection": False}, True),
        (200, 1000, {}, True),
        (20, 30, {}, True),
    ],
)
def test_rows_to_delete_from_the_projection_have_a_share_too(run, missing, projected, more, passes):
    """imapUidTable may have come back from an older snapshot, and no counter drifts."""
    counts = {planned.ONLY_PROJECTED: missing}
    facts = {"projected": projected, "messages": projected - missing, **more}
    plan = plan_of(run, [], inconsistencies=counts, **facts)
    if passes:
        assert run_gate(run, plan)["success"]
    else:
        with pytest.raises(GateFailed, match=r"At most 0\.2 of all rows of messageIdTable"):
            run_gate(run, plan)


def test_rows_to_delete_of_named_mailboxes_have_no_share(run):
    run = replace(run, duty_params=Params.parse({"mailboxes": AN_ID}))
    counts = {planned.ONLY_PROJECTED: 400}
    assert run_gate(run, plan_of(run, [], inconsistencies=counts, projected=999))["success"]


def test_verify_reads_what_is_not_projected_of_a_thousand_mailboxes_at_once(run, monkeypatch):
    asked = []
    monkeypatch.setattr(CounterPlan, "unprojected", lambda *of: asked.append(len(of[2])) or {})
    plan = plan_of(run, drifts_of(1001), [])
    stored = Counters(0, 0)
    stores = SimpleNamespace(
        mailboxes=SimpleNamespace(counters=lambda _: stored),
        own=SimpleNamespace(counter_claims=SimpleNamespace(list=lambda _: [])),
    )
    monkeypatch.setattr(
        "mailslice.duties.counter_repair.gates.reread_mailbox", lambda *_, **__: DRIFT.digest
    )
    assert len(read_after(replace(run, stores=stores), plan, {})) == 1001
    assert asked == [1000, 1]


def test_an_old_plan_is_refused(run):
    with pytest.raises(GateFailed, match="not older than 24 hours"):
        run_gate(run, plan_of(run, made_at=NOW - timedelta(hours=25)))


def test_what_the_gate_judges_is_in_the_digest(run):
    plan = plan_of(run)
    scan = FACTS.model_copy(update={"read": 9})
    assert plan.model_copy(update={"scan": scan}).digest != plan.digest


@pytest.mark.parametrize("key", ["scan", "drifts"])
def test_a_plan_with_a_field_that_nobody_knows_is_refused(run, key):
    plan = plan_of(run)
    decided = plan.as_json()
    decided[key]["x"] = 1
    run.folder.write_json("plan.json", {"decided": decided, "planDigest": plan.digest})
    with pytest.raises(PlanRefused, match="cannot be read"):
        runner.step_of(DUTY, "check")(run)


def test_a_plan_reads_back_what_was_written(run):
    large = drift((1, 50), (9, 3))
    plan = plan_of(run, [DRIFT, large])
    write_plan(run, plan)
    assert CounterPlan.model_validate(plan.as_json()) == plan
    assert plan.read_drifts(run) == [large, DRIFT]
    assert DRIFT.stored == Counters(1, 1)
    assert (DRIFT.digest, DRIFT.computed, DRIFT.add) == (
        MessageDigest(2, 1),
        Counters(2, 1),
        Counters(1, 0),
    )


def test_differences_are_read_by_kind_and_mailbox(run):
    other, message = uuid.uuid4(), uuid.uuid4()
    rows = [
        difference(planned.ONLY_TRUTH, uid=1, message=str(message)),
        difference(planned.ONLY_TRUTH, str(other), uid=2, message=str(message)),
        difference(planned.FLAGS_DIFFER, uid=3, message=str(message)),
    ]
    plan = plan_of(run, differences=rows)
    assert list(plan.read_differences(run)) == rows
    assert [row.uid for row in plan.read_differences(run, planned.REPAIRABLE[1:])] == [3]
    assert plan.unprojected(run, [uuid.UUID(AN_ID)]) == {uuid.UUID(AN_ID): [message.bytes]}
    assert plan.unprojected(run, []) == {}


@pytest.mark.parametrize("name", ["drifts", "differences-1"])
def test_a_file_of_other_rows_is_refused(run, name):
    plan = plan_of(run)
    other = run.write_rows(
        name,
        [drift((1, 1), (5, 5))] if name == "drifts" else [difference(uid=9)],
        Drift if name == "drifts" else Difference,
    )
    assert other.rows == 1
    with pytest.raises(PlanRefused, match="was changed"):
        (plan.read_drifts(run) if name == "drifts" else list(plan.read_differences(run)))


@pytest.mark.parametrize(
    ("repair", "counts", "repairable"),
    [
        (True, {planned.ONLY_TRUTH: 2, planned.MAILBOX_MISSING: 5}, 2),
        (True, {planned.WITHOUT_ID: 1}, 0),
        (False, {planned.ONLY_TRUTH: 2}, 0),
    ],
)
def test_only_rows_that_may_be_rewritten_are_work_besides_counters(run, repair, counts, repairable):
    plan = plan_of(run, [], repair_projection=repair, inconsistencies=counts)
    assert (plan.planned, plan.repairable, plan.has_work) == (0, repairable, repair)


class Repairs:
    """In the place of `MailboxCorrector`: an outcome by mailbox, or an error."""

    def __init__(self, outcomes):
        self._outcomes = outcomes
        self.asked = []

    def mailbox(self, drift, unprojected):
        self.asked.append((drift.mailbox, list(unprojected)))
        outcome = self._outcomes[drift.mailbox]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def corrected(run, plan, outcomes):
    """Progress after a work with these outcomes, mailbox by mailbox.

    Three failures in a row end it.
    """
    repairs = Repairs(outcomes)
    with Progress(run, plan) as progress:
        work = CounterWork(
            run, plan, progress, corrector=lambda *_: repairs, threads=1, max_failures=3
        )
        work.correct_all(plan.read_drifts(run))
    return progress.result(), repairs


def drifts_of(count):
    """From the largest drift to the smallest."""
    return [drift((1000 - at, 0), (0, 0)) for at in range(count)]


def test_every_outcome_is_counted_once_and_said(run):
    drifts = drifts_of(5)
    verdicts = [
        MailboxOutcome(DONE),
        MailboxOutcome(SKIPPED, "moved"),
        MailboxOutcome(FAILED, "away"),
        MailboxOutcome(UNKNOWN, "nobody knows"),
        MailboxOutcome(DONE),
    ]
    plan = plan_of(run, drifts, [])
    mailboxes = [one.mailbox for one in drifts]
    result, _ = corrected(run, plan, dict(zip(mailboxes, verdicts, strict=True)))
    assert (result.planned, result.applied, result.failed, result.remaining) == (5, 2, 2, 0)
    assert result.skipped == {"moved": 1}
    assert result.failures == {str(mailboxes[2]): "away", str(mailboxes[3]): "nobody knows"}
    assert result.fields["unknown"] == 1
    assert result.fields["outcomes"] == {
        str(mailbox): list(verdict) for mailbox, verdict in zip(mailboxes, verdicts, strict=True)
    }


def test_after_some_failures_in_a_row_the_rest_is_left(run):
    drifts = drifts_of(6)
    outcomes = {one.mailbox: MailboxOutcome(FAILED, "away") for one in drifts}
    outcomes[drifts[1].mailbox] = MailboxOutcome(SKIPPED, "moved")
    result, repairs = corrected(run, plan_of(run, drifts, []), outcomes)
    assert (result.failed, result.remaining, len(repairs.asked)) == (4, 1, 5)
    last = result.fields["outcomes"][str(drifts[5].mailbox)]
    assert last == ["left", "3 mailboxes before it failed"]


def test_an_error_leaves_what_was_done_and_what_was_not_in_progress(run):
    drifts = drifts_of(3)
    plan = plan_of(run, drifts, [])
    outcomes = {
        drifts[0].mailbox: MailboxOutcome(DONE),
        drifts[1].mailbox: RuntimeError("the lock is lost"),
        drifts[2].mailbox: MailboxOutcome(DONE),
    }
    with pytest.raises(RuntimeError, match="lost"):
        corrected(run, plan, outcomes)
    steps = Summaries.load(run.folder, ())
    assert (steps.result.applied, steps.result.remaining) == (1, 2)
    assert steps.result.fields["outcomes"][str(drifts[1].mailbox)] == ["left", NOT_REACHED]


def test_threads_beside_each_other_count_every_mailbox(run):
    drifts = drifts_of(600)
    plan = plan_of(run, drifts, [])
    barrier = threading.Barrier(THREADS)

    class Together:
        def mailbox(self, *_):
            barrier.wait(20)
            return MailboxOutcome(DONE)

    with Progress(run, plan) as progress:
        CounterWork(run, plan, progress, corrector=lambda *_: Together()).correct_all(drifts)
    assert (progress.result().applied, progress.result().remaining) == (600, 0)


def test_the_messages_that_only_the_truth_has_go_with_their_mailbox(run):
    message = uuid.uuid4()
    rows = [difference(planned.ONLY_TRUTH, message=str(message))]
    plan = plan_of(run, [DRIFT], rows)
    _, repairs = corrected(run, plan, {DRIFT.mailbox: MailboxOutcome(DONE)})
    assert repairs.asked == [(DRIFT.mailbox, [message.bytes])]


def test_a_second_try_says_nothing_of_the_outcomes_of_the_first(run):
    plan = plan_of(run, [DRIFT], [])
    corrected(run, plan, {DRIFT.mailbox: MailboxOutcome(UNKNOWN, "nobody knows")})
    result, _ = corrected(run, plan, {DRIFT.mailbox: MailboxOutcome(DONE)})
    assert (result.applied, result.failed, result.fields["unknown"]) == (1, 0, 0)
    assert result.fields["outcomes"] == {AN_ID: ["applied", ""]}


def claimed(run, monkeypatch, at, outcome):
    """This run, which claimed the mailbox of DRIFT then, and whose counters are as planned."""
    monkeypatch.setattr(Run, "require_lock", lambda _: None)
    monkeypatch.setattr(
        "mailslice.duties.counter_repair.corrections.reread_mailbox", lambda *_, **__: DRIFT.digest
    )
    claim = CounterClaim("r-1", at, 3, 3, -1, -1, outcome)
    claims = SimpleNamespace(list=lambda _: [claim], settle=lambda *given: settled.append(given[2]))
    settled = []
    mailboxes = SimpleNamespace(
        prepare_to_add=lambda: None,
        counters=lambda _: DRIFT.stored,
        counters_of_all_replicas=lambda _: Counters(2, 2),
    )
    stores = SimpleNamespace(mailboxes=mailboxes, own=SimpleNamespace(counter_claims=claims))
    return replace(run, stores=stores), settled


@pytest.mark.parametrize("outcome", [decide.APPLIED, None])
@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (NOW - timedelta(hours=1), MailboxOutcome(SKIPPED, decide.EARLIER_PLAN)),
        (NOW, MailboxOutcome(DONE)),
    ],
)
def test_what_a_cleared_run_corrected_by_an_earlier_plan_is_no_correction_of_this_one(
    run, monkeypatch, outcome, at, expected
):
    """A run is planned again after a clear. Its one claim of a mailbox is of the first plan."""
    run, settled = claimed(run, monkeypatch, at, outcome)
    assert MailboxCorrector(run, plan_of(run, [DRIFT], [])).mailbox(DRIFT, ()) == expected
    assert settled == ([] if outcome else [decide.APPLIED])


@pytest.mark.parametrize(("at", "judged"), [(NOW - timedelta(hours=1), 0), (NOW, 1)])
def test_verify_leaves_out_what_an_earlier_plan_of_the_run_corrected(run, monkeypatch, at, judged):
    run, _ = claimed(run, monkeypatch, at, decide.APPLIED)
    digest = DRIFT.digest
    monkeypatch.setattr(
        "mailslice.duties.counter_repair.gates.reread_mailbox", lambda *_, **__: digest
    )
    outcomes = {AN_ID: [SKIPPED, decide.EARLIER_PLAN]}
    after = read_after(run, plan_of(run, [DRIFT], []), outcomes)
    assert len(judged_after(after).rows) == judged


@pytest.mark.parametrize(("changed", "judged"), [(0, 1), (1, 0)])
def test_verify_judges_no_mailbox_whose_messages_changed_since(run, monkeypatch, changed, judged):
    run, _ = claimed(run, monkeypatch, NOW, decide.APPLIED)
    digest = replace(DRIFT.digest, first=DRIFT.first + changed)
    monkeypatch.setattr(
        "mailslice.duties.counter_repair.gates.reread_mailbox", lambda *_, **__: digest
    )
    after = read_after(run, plan_of(run, [DRIFT], []), {AN_ID: [DONE, ""]})
    assert len(judged_after(after).rows) == judged


@pytest.mark.parametrize(
    ("drifts", "counts", "slept"),
    [([DRIFT], {}, 1), ([], {planned.ONLY_TRUTH: 1}, 1), ([], {planned.WITHOUT_ID: 1}, 0)],
)
def test_apply_waits_for_settle_where_something_is_read_again(
    run, monkeypatch, drifts, counts, slept
):
    pauses = []
    monkeypatch.setattr(Run, "require_clock", lambda *_: None)
    plan = plan_of(run, drifts, [], inconsistencies=counts)
    CounterRepair(pauses.append).before_lock(run, plan)
    assert pauses == [300.0] * slept


def report_of(run, plan, applied=None, **summary):
    """The report of a run with this plan; `applied` and `verify` as their steps wrote them."""
    write_plan(run, plan)
    kept = run.folder.read_json("plan.json")
    run.folder.write_json(
        "plan.json", {**kept, "message": "what it found", "wrong": plan.planned, **summary}
    )
    if applied is not None:
        run.folder.write_json("applied.json", {"planned": plan.planned, **applied})
        run.folder.write_json("verify.json", {"success": True, "drifts": {}})
    return runner.step_of(DUTY, "report")(run)


def test_a_report_says_what_was_corrected_skipped_and_left(run):
    plan = plan_of(run, drifts_of(4), [])
    report = report_of(
        run, plan, {"applied": 1, "skipped": 2, "skippedBy": {"moved": 2}, "remaining": 1}
    )
    assert (report["status"], report["message"]) == (
        "done",
        "1 of 4 wrong mailboxes corrected, 2 skipped: 2 moved, 1 left to the next run",
    )
    assert report["plot"].endswith("drifts.svg")
    assert (report["left"], report["failedMailboxes"], report["unknown"]) == (1, 0, 0)


def test_a_report_of_unknown_mailboxes_or_failed_rows_has_failed(run):
    plan = plan_of(run, drifts_of(2), [])
    applied = {"applied": 1, "failed": 1, "unknown": 1, "failures": {"m": "nobody knows"}}
    report = report_of(run, plan, applied)
    assert (report["status"], report["failedMailboxes"]) == ("failed", 1)
    assert "1 failed or unknown (1 unknown), such as m: nobody knows" in report["message"]
    counts = {"planned": 2, "written": 1, "deleted": 0, "skipped": 0, "failed": 1, "left": 0}
    report = report_of(run, plan, {"applied": 2, "projection": counts})
    assert report["status"] == "failed"
    assert "1 rows written" in report["message"]


def test_a_report_of_nothing_says_so_and_rows_alone_are_something(run):
    plan = plan_of(run, [], [])
    report = report_of(run, plan, {})
    assert (report["status"], report["message"]) == (
        "nothing to do",
        "nothing to do: what it found",
    )
    counts = {"planned": 1, "written": 1, "deleted": 0, "skipped": 0, "failed": 0, "left": 0}
    report = report_of(run, plan, {"projection": counts})
    assert (report["status"], report["projection"]) == ("done", counts)


def test_a_report_of_a_plan_that_did_not_end_has_every_field(run):
    fields = runner.partial_report(DUTY, run.folder)
    assert {
        name: fields[name]
        for name in ("processedMailboxes", "failedMailboxes", "wrong", "messages", "unknown")
    } == dict.fromkeys(("processedMailboxes", "failedMailboxes", "wrong", "messages", "unknown"), 0)
    assert (fields["inconsistencies"], fields["inconsistencySample"]) == ({}, [])
    assert (fields["projection"], fields["after"]) == (None, None)


def test_what_verify_read_is_reported_though_its_gate_did_not_pass(run):
    after = {"wrong": 1, "largest": []}
    run.folder.write_json("after.json", {"after": after})
    assert runner.partial_report(DUTY, run.folder)["after"] == after


@pytest.mark.parametrize(("trusted", "truth", "told"), [(True, 0, 7), (False, 0, 0), (False, 9, 9)])
def test_messages_are_those_of_the_table_that_was_counted(run, trusted, truth, told):
    plan = plan_of(run, [], [], trust_projection=trusted, repair_projection=False)
    assert report_of(run, plan, {}, messages=truth, projectedMessages=7)["messages"] == told


def test_the_frames_of_a_gate_are_of_the_plans_own_rows(run):
    frames = list(DUTY.check(run, plan_of(run)))
    assert [frame.name for frame in frames] == ["totals", "drifts", "differences"]
    assert all(isinstance(frame, Frame) for frame in frames)


def test_what_a_task_wrote_of_differences_is_what_the_plan_reads(run):
    mailbox, message = uuid.UUID(AN_ID), uuid.uuid4()
    columns = {
        "kind": [planned.ONLY_TRUTH, planned.WITHOUT_ID],
        "mailbox": [mailbox.bytes] * 2,
        "uid": [4, 5],
        "message": [message.bytes, None],
        **{name: [7, None] for name in ("truth_modseq", "truth_flags", "truth_user_flags")},
        **{
            name: [None, 8]
            for name in ("projected_modseq", "projected_flags", "projected_user_flags")
        },
    }
    what = ComparisonSpec(None, run.folder.artifacts, run.folder.name, frozenset(), frozenset())
    batches = [pa.RecordBatch.from_pydict(columns), pa.RecordBatch.from_pydict(columns).slice(1)]
    (written,) = differences._write(what, iter(batches))
    rows = written.to_pylist()
    assert {row["kind"]: row["rows"] for row in rows} == {
        planned.ONLY_TRUTH: 1,
        planned.WITHOUT_ID: 2,
    }
    ((name, count, digest),) = {(row["file"], row["file_rows"], row["digest"]) for row in rows}
    file = RowFile(name, count, digest)
    plan = plan_of(run, differences=[]).model_copy(update={"differences": (file,)})
    first = Difference(planned.ONLY_TRUTH, AN_ID, 4, str(message), 7, 7, 7, None, None, None)
    other = Difference(planned.WITHOUT_ID, AN_ID, 5, None, None, None, None, 8, 8, 8)
    assert list(plan.read_differences(run)) == [first, other, other]
    assert plan.files() >= {name}


def test_a_task_without_differences_writes_no_file(run):
    what = ComparisonSpec(None, run.folder.artifacts, run.folder.name, frozenset(), frozenset())
    assert list(differences._write(what, iter([]))) == []
    assert run.folder.artifacts.files(run.folder.file("plan")) == []


@pytest.mark.parametrize(
    ("side", "seen"), [("truth", MessageDigest(1, 2, 3, 4, 5, 6)), ("projected", MessageDigest())]
)
def test_a_drift_is_of_the_side_that_is_counted(side, seen):
    row = {f"truth_{field.name}": at for at, field in enumerate(fields(MessageDigest), 1)}
    row |= {f"projected_{field.name}": 0 for field in fields(MessageDigest)}
    row |= {"key": uuid.UUID(AN_ID).bytes, "stored_count": 9, "stored_unseen": 8, "given_modseq": 7}
    assert drift_of(row, side) == Drift.of(uuid.UUID(AN_ID), Counters(9, 8), seen, 7)
