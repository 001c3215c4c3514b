"""The last run of each duty as Prometheus text: each run replaces the file of duty and queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mailslice.maintenance.alerts import Alert, Reading
from mailslice.maintenance.report import FAILED, REFUSED
from mailslice.model.names import file_name

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily


def file_of(duty: str, queue: str | None) -> str:
    """The file of a duty below the artifacts location; `queue` None for a duty without queue."""
    return queue_file(f"duty-{duty}", queue) if queue else f"metrics/duty-{duty}.prom"


def queue_file(prefix: str, queue: str) -> str:
    """The file of a queue below the artifacts location; a collector reads all *.prom files."""
    return f"metrics/{prefix}-{file_name(queue)}.prom"


def value_in(text: bytes, metric: str, queue: str, default: float) -> float:
    """The sample of a metric and queue in a metrics file; `default` where it has none."""
    own = (value for labels, value in samples_in(text, metric) if labels["queue"] == queue)
    return next(own, default)


def samples_in(text: bytes, metric: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """Labels and value of each sample of a metric in a metrics file."""
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text.decode()):
        yield from ((one.labels, one.value) for one in family.samples if one.name == metric)


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a gauge. Samples of one name have the same text and the same labels."""

    name: str
    text: str
    labels: Mapping[str, str]
    value: float


def families(samples: Iterable[Sample]) -> Iterator[GaugeMetricFamily]:
    """One family of prometheus-client for each name, in the order of first appearance."""
    from prometheus_client.core import GaugeMetricFamily

    by_name: dict[str, GaugeMetricFamily] = {}
    for sample in samples:
        name, labels = sample.name, sample.labels
        if name not in by_name:
            by_name[name] = GaugeMetricFamily(name, sample.text, labels=list(labels))
        by_name[name].add_metric(list(labels.values()), sample.value)
    yield from by_name.values()


def exposition(samples: Iterable[Sample]) -> bytes:
    """The samples as Prometheus text."""
    from prometheus_client import generate_latest

    registry: Any = SimpleNamespace(collect=lambda: families(samples))
    return generate_latest(registry)


def duty_samples(
    report: Mapping[str, Any], readings: Sequence[Reading], alerts: Iterable[Alert]
) -> Iterator[Sample]:
    """A run's end and counts, and every figure that has a limit. `alerts`: those that fire."""
    labels = {"duty": str(report["duty"]), "queue": str(report["queue"] or "")}

    def sample(name: str, text: str, value: float, **more: str) -> Sample:
        return Sample(f"mailslice_{name}", text, labels | more, value)

    finished = datetime.fromisoformat(report["finished"]).timestamp()
    yield sample("duty_finished_timestamp_seconds", "When the last run ended", finished)
    ended_well = report.get("status") not in {FAILED, REFUSED}
    yield sample("duty_succeeded", "1 when the last run neither failed nor was refused", ended_well)
    if seconds := [value for value in (report.get("seconds") or {}).values() if value is not None]:
        yield sample("duty_duration_seconds", "Seconds that its steps took", float(sum(seconds)))
    for name in ("planned", "applied", "skipped", "failed"):
        value = report.get(name) or 0
        yield sample("duty_items", "Items of the last run", value, outcome=name)
    over = "1 when a figure is over its limit (MAILSLICE_ALERT_...)"
    text = "The figure; seconds where it is a time"
    firing = dict.fromkeys((alert["name"] for alert in alerts), True)
    for name, fires in (firing | {one.name: one.firing for one in readings}).items():
        yield sample("alert", over, int(fires), alert=name)
    for reading in readings:
        yield sample("alert_value", text, reading.value, alert=reading.name)
        yield sample("alert_limit", "Its limit", reading.limit, alert=reading.name)


def verdict_samples(queue: str, verdicts: Mapping[str, int]) -> Iterator[Sample]:
    """Old live mails by the verdict of an audit."""
    for verdict, count in verdicts.items():
        labels = {"queue": queue, "verdict": str(verdict)}
        text = "Old live mails by the verdict of the last audit"
        yield Sample("mailslice_audit_mails", text, labels, count)
