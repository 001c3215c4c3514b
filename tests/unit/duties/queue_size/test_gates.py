"""The gate before publishing: a measurement that does not add up is not published.

The message names the sentence that is not true.
"""

from datetime import datetime, timedelta

import pytest

from mailslice.duties.queue_size.duty import DUTY, MeasurementPlan, size_in
from mailslice.duties.queue_size.metrics import samples
from mailslice.maintenance.metrics import exposition
from mailslice.maintenance.result import Result
from mailslice.maintenance.runner import step_of
from mailslice.model.errors import GateFailed, PlanRefused
from tests.unit.duties.judging import broken, run_of

NOW = datetime.fromisoformat("2026-11-21T12:00:00Z")


def measured():
    return {
        "measuredAt": "2026-11-21T12:00:00Z",
        "size": 3,
        "live": 3,
        "dead": 7,
        "survivors": 0,
        "unproven": 1,
        "oldest": "2026-11-21T11:10:00Z",
        "oldestAgeSeconds": 3000.0,
        "browseStart": "2026-11-21T11:00:00Z",
        "contentStart": "2026-11-21T10:00:00Z",
        "fullest": {"slice": "2026-11-21T11:00:00Z", "mails": 8},
        "deadLetters": 0,
        "lastSeenEmpty": None,
        "slices": [
            {"start": "2026-11-21T10:00:00Z", "live": 0, "dead": 2, "unproven": 1},
            {"start": "2026-11-21T11:00:00Z", "live": 3, "dead": 5, "unproven": 0},
        ],
        "shape": {"columns": ["5", "10"], "total": [1, 2], "domains": []},
        "window": 3600,
        "reads": {"wanted": 3, "read": 3, "twice": 0},
    }


def gate(found, tmp_path, now=NOW, **changed):
    """What the check step says of a run whose plan step measured this."""
    plan = MeasurementPlan(run="r-1", queue="spool", made_at=NOW, measured=found)
    run = run_of(tmp_path, "queue_size", clock=lambda: now)
    decided = plan.as_json() | {"measured": {**plan.as_json()["measured"], **changed}}
    run.folder.write_json("plan.json", {"decided": decided, "planDigest": plan.digest})
    return step_of(DUTY, "check")(run)["expectations"]


def test_a_measurement_that_adds_up_passes_and_has_its_page(tmp_path):
    assert len(gate(measured(), tmp_path)) == 4
    assert list((tmp_path / "data_docs" / "gates").glob("*check.html"))


def test_an_empty_queue_passes(tmp_path):
    empty = {
        "live": 0,
        "dead": 0,
        "unproven": 0,
        "oldest": None,
        "slices": [],
        "shape": {"columns": ["5"], "total": [0], "domains": []},
    }
    assert gate(measured() | empty, tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"reads": {"wanted": 4, "read": 3, "twice": 0}},
            "Every slice that was to be read was read",
        ),
        ({"reads": {"wanted": 3, "read": 3, "twice": 1}}, "No slice was counted twice"),
        ({"window": 7200}, "Every slice starts at a multiple of the slice window"),
    ],
)
def test_one_that_does_not_is_refused_by_the_sentence(change, sentence, tmp_path):
    with pytest.raises(GateFailed, match=sentence):
        gate(measured() | change, tmp_path)


def test_two_runs_that_overlap_publish_the_later_measurement_and_neither_fails(tmp_path):
    earlier, later = (measured() | {"passes": None, "size": size} for size in (3, 4))
    later["measuredAt"] = "2026-11-21T12:00:30Z"

    def publish(name, found):
        run = run_of(tmp_path, "queue_size", name=name)
        at = datetime.fromisoformat(found["measuredAt"])
        plan = MeasurementPlan(run=name, queue="spool", made_at=at, measured=found)
        DUTY.publish(run, plan)
        return lambda: broken(*DUTY.verify(run, plan, Result(plan.digest, fields=run.fields)))

    first, second = publish("r-1", earlier), publish("r-2", later)
    assert (first(), second()) == (set(), set())
    again = publish("r-1", earlier)
    assert (again(), second()) == (set(), set())


def test_an_old_measurement_is_refused(tmp_path):
    with pytest.raises(GateFailed, match="not older than 24 hours"):
        gate(measured(), tmp_path, NOW + timedelta(hours=25))


@pytest.mark.parametrize("name", measured())
def test_a_measurement_that_was_changed_is_refused_whatever_was_changed(name, tmp_path):
    with pytest.raises(PlanRefused, match="was changed"):
        gate(measured(), tmp_path, **{name: "other"})


def test_the_size_is_read_back_by_the_queues_own_name():
    text = exposition(samples('a"b', measured()))
    assert size_in(text, 'a"b') == 3
    assert size_in(text, "other") == -1
    assert size_in(b"", "spool") == -1
