"""Run ids, params, the registry of duties."""

from datetime import UTC, datetime, timedelta

import pytest

from mailslice.duties.queue_cleanup.params import Params
from mailslice.maintenance import registry
from mailslice.maintenance.run_request import (
    NO_QUEUE,
    RunRequest,
    new_run,
    queue_or_none,
    run_of_dag,
)
from mailslice.maintenance.runner import steps_of
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_run_ids_sort_by_time_and_differ():
    first, second = new_run(lambda: NOON), new_run(lambda: NOON)
    assert first.startswith("20261121T120000Z-")
    assert first != second


def test_all_tasks_of_a_dag_run_share_the_run_id_of_their_queue():
    dag_run = "scheduled__2026-11-21T02:15:00+00:00"
    assert run_of_dag("queue_cleanup", "spool", dag_run) == run_of_dag(
        "queue_cleanup", "spool", dag_run
    )
    assert (
        len(
            {
                run_of_dag(duty, queue, dag_run)
                for duty in ("queue_cleanup", "queue_size")
                for queue in ("spool", "ä/..")
            }
        )
        == 4
    )
    RunRequest("queue_cleanup", QueueName("spool"), run_of_dag("queue_cleanup", "ä b", dag_run))


def test_the_run_of_the_longest_dag_run_has_an_allowed_id():
    run = run_of_dag("stuck_mails_postal", NO_QUEUE, "x" * 250)
    assert RunRequest("stuck_mails_postal", NO_QUEUE, run).run == run


def test_the_audit_of_a_republish_on_the_queue_with_the_longest_name_has_an_allowed_id():
    queue = QueueName("q" * 255)
    run = f"{run_of_dag('mail_actions', queue, 'manual__1')}-audit"
    assert RunRequest("queue_audit", queue, run).run == run


def test_a_run_is_about_a_queue_or_about_none():
    assert queue_or_none("spool") == "spool"
    assert RunRequest("blob_gc", queue_or_none(NO_QUEUE), "r").reported_queue is None
    with pytest.raises(BadInput, match="queue name"):
        queue_or_none("")


@pytest.mark.parametrize("run", ["", "../x", "a/b", ".hidden", "x" * 181])
def test_a_run_id_that_could_leave_its_folder_is_refused(run):
    with pytest.raises(BadInput, match="run id"):
        RunRequest("queue_cleanup", QueueName("spool"), run)


def test_params_are_read_from_json_and_default_where_nothing_is_given():
    params = Params.parse({"grace": "90s", "slices_from": "2026-11-01T00:00:00", "reason": None})
    assert (params.grace, params.dry_run, params.max_share) == (timedelta(seconds=90), False, 0.0)
    assert params.slices_from == datetime(2026, 11, 1, tzinfo=UTC)
    assert params.ranged
    assert params.as_json()["grace"] == "90s"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"grace": "soon"}, "grace='soon'"),
        ({"grace": -3600}, "grace=-3600: allowed: 0s or more"),
        ({"time_limit": -0.5}, "time_limit=-0.5: allowed: 0s or more"),
        ({"max_share": 1.5}, "max_share=1.5"),
        (
            {"colour": "red"},
            (
                "colour is not a param; allowed: aside, dry_run, grace, intensity, max_share, "
                "rate, reason, restarted, "
                "slices_before, slices_from, sweep, time_limit, unusual"
            ),
        ),
        ({"sweep": True, "slices_from": "2026-11-02"}, "sweep looks at everything"),
        ({"slices_from": "2026-11-02", "slices_before": "2026-11-01"}, "is not before"),
    ],
)
def test_a_wrong_param_is_named_with_what_is_allowed(given, words):
    with pytest.raises(BadInput, match=words):
        Params.parse(given)


def test_after_the_plan_only_params_that_later_steps_read_may_change():
    planned = {"grace": "90s", "sweep": True}
    given = {"grace": "1.5m", "rate": 5, "intensity": 0.5, "reason": "by night", "dry_run": True}
    assert Params.later(planned, given) == {**planned, **given}
    for late in ({"grace": "2m"}, {"sweep": False}, {"slices_from": "2026-11-01"}):
        with pytest.raises(BadInput, match=next(iter(late))):
            Params.later(planned, late)
    with pytest.raises(BadInput, match="mode='shadow': the plan was made with another value"):
        registry.load("stuck_mails").params.later({"mode": "close"}, {"mode": "shadow"})


def test_a_dry_run_leaves_out_what_changes():
    assert steps_of(Params(dry_run=True)) == ("plan", "check", "report")
    assert steps_of(Params()) == ("plan", "check", "apply", "verify", "report")


def test_every_duty_has_a_summary_params_and_five_steps():
    assert {"queue_cleanup", "queue_size"} <= set(registry.names())
    duty = registry.load("queue_cleanup")
    assert duty.summary.startswith("Deletes dead rows")
    assert duty.params is Params


def test_an_unknown_duty_names_the_known_ones():
    with pytest.raises(BadInput, match=r"duty 'queue_clean' is not known; known: .*queue_cleanup"):
        registry.load("queue_clean")
