"""The gate before publishing: a measurement that does not add up is published nowhere, and the message says which sentence is not true."""

from datetime import UTC, datetime, timedelta

import pytest

from mailslice.duties.queue_size.check import slices, totals
from mailslice.duties.queue_size.measured import digest
from mailslice.duties.queue_size.measured import measured as of_the_run
from mailslice.duties.queue_size.metrics import prometheus_text
from mailslice.duties.queue_size.verify import size_in
from mailslice.duty.artifacts import Artifacts
from mailslice.model.errors import GateFailed, PlanRefused
from mailslice.model.settings import S3Settings
from mailslice.quality.docs import Docs
from mailslice.quality.gate import run_gate
from tests.unit.duties.judging import context_of

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


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


def gate(found, tmp_path, now=NOW):
    docs = Docs(Artifacts(str(tmp_path), S3Settings()), "queue_size", "spool", "r1")
    return run_gate("check", [totals(found, now), slices(found)], docs)


def test_a_measurement_that_adds_up_passes_and_has_its_page(tmp_path):
    result = gate(measured(), tmp_path)
    assert len(result.findings) == 4
    assert all(finding.success for finding in result.findings)
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
    result = gate(measured() | empty, tmp_path)
    assert all(finding.success for finding in result.findings)


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


def test_an_old_measurement_is_refused(tmp_path):
    with pytest.raises(GateFailed, match="not older than a day"):
        gate(measured(), tmp_path, NOW + timedelta(hours=25))


def test_a_measurement_that_was_changed_is_refused_whatever_was_changed(tmp_path):
    context = context_of(tmp_path, "queue_size")
    found = {"run": "r-1", "queue": "spool", **measured()}
    context.need = lambda _: {**found, "planDigest": digest(found)}
    assert of_the_run(context)["live"] == 3
    for name in measured():
        context.need = lambda _, name=name: {**found, name: "other", "planDigest": digest(found)}
        with pytest.raises(PlanRefused, match="was changed"):
            of_the_run(context)


def test_the_size_is_read_back_by_the_queues_own_name():
    text = prometheus_text('a"b', measured())
    assert size_in(text, 'a"b') == 3
    assert size_in(text, "other") == -1
    assert size_in(b"", "spool") == -1
