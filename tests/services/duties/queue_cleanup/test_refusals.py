"""What stops a cleanup before it changes anything.

Clocks, gates, edited plans, another configuration, an unknown queue.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.errors import (
    BadInput,
    ClockSkew,
    ConfigurationDiffers,
    GateFailed,
    PlanRefused,
    UnknownQueue,
)
from tests.services.duties.queue_cleanup.conftest import store_configuration
from tests.services.duties.queue_cleanup.test_marks import rewrite
from tests.services.duties.world import ahead


@pytest.fixture
def planned(view):
    """A queue with one dead row, a run that is planned and checked, and the run's folder."""
    view.start_at(0)
    view.insert(0, dead=True)
    request = view.request()
    view.steps(request, "plan", "check")
    return (
        view,
        request,
        RunFolder(artifacts(view.settings), request.duty, request.queue, request.run),
    )


@pytest.mark.parametrize("ahead", [timedelta(seconds=3), timedelta(seconds=-3)])
def test_a_clock_that_differs_by_more_than_a_quarter_of_the_grace_refuses_to_plan(view, ahead):
    view.start_at(0)
    view.insert(0, dead=True)
    with pytest.raises(
        ClockSkew,
        match=r"Cassandra's clock is [23]\.\d+ s .* allowed is a quarter of the grace 2s",
    ):
        view.clean(clock=lambda: datetime.now(UTC) + ahead)
    assert len(view.rows(0)) == 1


@pytest.mark.parametrize("ahead", [timedelta(seconds=3), timedelta(seconds=-3)])
def test_an_apply_on_a_machine_whose_clock_differs_writes_no_start(planned, ahead):
    """Airflow may run it on another machine than the plan."""
    view, request, _ = planned
    with pytest.raises(ClockSkew):
        view.steps(request, "apply", clock=lambda: datetime.now(UTC) + ahead)
    assert (view.browse_start, len(view.rows(0))) == (view.at(0), 1)


def test_a_clock_within_a_quarter_of_the_grace_is_good_enough(view):
    view.start_at(0)
    view.insert(0, dead=True)
    assert (
        view.clean(clock=lambda: datetime.now(UTC) + timedelta(seconds=3), grace="20s")["status"]
        == "done"
    )


def test_a_refused_run_is_in_the_ledger_with_who_and_why(view):
    view.start_at(0)
    with pytest.raises(ClockSkew):
        view.clean(clock=lambda: datetime.now(UTC) + timedelta(hours=1), reason="nightly")
    row = Ledger(view.stores, view.settings).last("queue_cleanup", view.queue)
    assert (row["status"], row["who"], row["reason"]) == ("refused", "tester", "nightly")
    assert row["message"].startswith("plan: Cassandra's clock")


def test_a_step_that_is_done_again_keeps_the_run_in_the_ledger(planned):
    view, request, _ = planned
    ledger = Ledger(view.stores, view.settings)
    for step in ("apply", "apply", "verify", "report", "report"):
        view.steps(request, step)
        assert ledger.show(request.run)["run"] == request.run
    assert [row["run"] for row in ledger.list("queue_cleanup", view.queue)].count(request.run) == 1


def test_a_plan_json_that_was_edited_is_refused(planned):
    view, request, folder = planned
    plan = folder.read_json("plan.json")
    plan["decided"]["newBrowseStart"] = "2030-01-01T00:00:00Z"
    folder.write_json("plan.json", plan)
    with pytest.raises(PlanRefused, match="was changed: its digest is"):
        view.steps(request, "apply")
    assert len(view.rows(0)) == 1
    assert view.browse_start == view.at(0)


def test_plan_files_that_were_edited_are_refused(planned):
    view, request, folder = planned
    for path in Path(folder.uri, "plan").glob("part-*.parquet"):
        rewrite(path)
    with pytest.raises(PlanRefused, match="files of the plan were changed"):
        view.steps(request, "apply")
    assert len(view.rows(0)) == 1


def test_plan_files_that_are_gone_are_refused(planned):
    view, request, folder = planned
    for path in Path(folder.uri, "plan").glob("part-*.parquet"):
        path.unlink()
    with pytest.raises(PlanRefused, match="of the plan cannot be read, it was changed or removed"):
        view.steps(request, "apply")
    assert len(view.rows(0)) == 1


def test_apply_without_a_passed_gate_is_refused(view):
    view.start_at(0)
    view.insert(0, dead=True)
    request = view.request()
    view.steps(request, "plan")
    with pytest.raises(PlanRefused, match="check comes first"):
        view.steps(request, "apply")


def test_a_plan_that_is_a_day_old_is_refused(planned):
    view, request, _ = planned
    with pytest.raises(PlanRefused, match="24 h"):
        view.steps(request, "apply", clock=ahead(timedelta(hours=25)))


def test_a_plan_of_another_run_is_refused(planned):
    view, request, folder = planned
    other = view.request()
    theirs = RunFolder(folder.artifacts, other.duty, other.queue, other.run)
    for name in ("plan.json", "check.json"):
        theirs.write_json(name, folder.read_json(name))
    with pytest.raises(PlanRefused, match=f"is of run {request.run}"):
        view.steps(other, "apply")


def test_a_configuration_that_changed_since_the_plan_is_refused(own_view):
    own_view.start_at(0)
    own_view.insert(0, dead=True)
    request = own_view.request()
    own_view.steps(request, "plan", "check")
    store_configuration(own_view, timedelta(seconds=5))
    with pytest.raises(PlanRefused, match="configuration of the queue view changed"):
        own_view.steps(request, "apply")
    assert len(own_view.rows(0)) == 1


def test_settings_that_contradict_the_stored_configuration_are_refused(own_view):
    own_view.start_at(0)
    queue = own_view.settings.queue.model_copy(update={"slice_window": timedelta(seconds=20)})
    own_view.settings = own_view.settings.model_copy(update={"queue": queue})
    with pytest.raises(ConfigurationDiffers, match="config apply"):
        own_view.clean()


def test_an_unknown_queue_names_the_known_ones(view):
    with pytest.raises(UnknownQueue, match="first"):
        view.steps(RunRequest("queue_cleanup", "nobody", "r-1"), "plan")


def test_a_bad_param_names_itself_and_what_is_allowed(view):
    with pytest.raises(BadInput, match=r"grace='soon'.*90s, 15m"):
        view.clean(grace="soon")
    with pytest.raises(BadInput, match="graces is not a param; allowed: aside, dry_run, grace"):
        view.clean(graces="2s")


def test_a_failed_verify_fails_the_run_and_the_ledger_says_so(planned):
    view, request, _ = planned
    (gone,) = view.rows(0)
    view.steps(request, "apply")
    view.insert(0, dead=True, enqueue_id=gone)
    with pytest.raises(GateFailed, match="No row that was deleted is there"):
        view.steps(request, "verify")
    report = view.steps(request, "report")
    assert report["status"] == "failed"
    assert report["message"].startswith("verify: gate verify of queue_cleanup")
    assert json.loads(json.dumps(report))["after"]["live"] == 0
