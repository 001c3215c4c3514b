"""Figures of a run for Prometheus: in the text file of the run, and by the exporter."""

from collections.abc import Iterator, Mapping
from typing import Any

from mailslice.duties.stuck_mails_postal.rules import PostalStage, PostalState
from mailslice.maintenance.metrics import Sample

METRICS_FILE = "metrics/mailslice-postal.prom"
"""Below the artifacts location."""
OUTCOMES = ("closed", "retried", "completed", "lost", "failed", "skipped", "left")
_GAUGES = {
    "queued": ("queued_messages", "Rows of Postal's queue"),
    "oldestSeconds": ("oldest_lock_seconds", "Age of the oldest lock that is too old; 0: none"),
    "lockTimeoutSeconds": ("lock_timeout_seconds", "From which age on a lock is too old"),
    "p99Seconds": ("sending_p99_seconds", "99th percentile of what sending took"),
    "quarantined": ("quarantined_messages", "Messages that wait for a person"),
}


def samples(report: Mapping[str, Any]) -> Iterator[Sample]:
    """Figures of a run that surveyed the queue. An unknown value has no figure, never zero."""
    if "lockTimeoutSeconds" not in report:
        return
    for field, (name, text) in _GAUGES.items():
        if (value := report.get(field)) is not None:
            yield Sample(f"mailslice_postal_{name}", text, {}, float(value))
    unreadable = "Mail servers whose database could not be read in full"
    count = len(report.get("unreadable") or ())
    yield Sample("mailslice_postal_unreadable_servers", unreadable, {}, count)
    states, stages = report.get("byState") or {}, report.get("byStage") or {}
    text = "Messages of old locks, and those that are gone, as the last run found them"
    for state in PostalState:
        labels = {"state": state.value}
        yield Sample("mailslice_postal_found_messages", text, labels, states.get(state.value, 0))
    text = "Stuck messages by how far their worker had come"
    for stage in PostalStage:
        labels = {"stage": stage.value}
        yield Sample("mailslice_postal_stuck_messages", text, labels, stages.get(stage.value, 0))
    text = "What the last run did with messages; all 0 in mode shadow"
    for outcome in OUTCOMES:
        value = report.get(outcome) or 0
        yield Sample("mailslice_postal_run_messages", text, {"outcome": outcome}, value)
