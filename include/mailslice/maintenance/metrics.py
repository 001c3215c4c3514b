"""The last run of each duty as Prometheus text: one file a duty and queue, replaced each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from mailslice.maintenance.alerts import Reading
from mailslice.model.names import file_name


def file_of(duty: str, queue: str | None) -> str:
    """The file of a duty below the artifacts location; `queue` None for a duty without queue."""
    subject = f"-{file_name(queue)}" if queue else ""
    return f"metrics/duty-{duty}{subject}.prom"


def queue_file(prefix: str, queue: str) -> str:
    """The file of a queue below the artifacts location; a collector reads all *.prom files."""
    return f"metrics/{prefix}-{file_name(queue)}.prom"


def values_in(text: bytes, metric: str, queue: str, label: str = "queue") -> dict[str, float]:
    """The samples of a metric and queue in a metrics file, by the value of a label."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        sample.labels[label]: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == metric and sample.labels["queue"] == queue
    }


def prometheus_text(report: Mapping[str, Any], readings: Iterable[Reading]) -> bytes:
    """When it ended, what it did, and every figure that has a limit, with 1 for those that fire."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    labels = {"duty": report["duty"], "queue": report["queue"] or ""}

    def gauge(name: str, text: str, value: float, **more: str) -> None:
        known = gauges.get(name) or Gauge(
            f"mailslice_{name}", text, [*labels, *more], registry=registry
        )
        gauges[name] = known
        known.labels(**labels, **more).set(value)

    gauges: dict[str, Gauge] = {}
    finished = datetime.fromisoformat(report["finished"]).timestamp()
    gauge("duty_finished_timestamp_seconds", "When the last run ended", finished)
    for name in ("planned", "applied", "skipped", "failed"):
        gauge("duty_items", "Items of the last run", report.get(name) or 0, outcome=name)
    over = "1 when a figure is over its limit (MAILSLICE_ALERT_...)"
    for one in readings:
        gauge("alert", over, int(one.firing), alert=one.name)
        gauge("alert_value", "The figure; seconds where it is a time", one.value, alert=one.name)
        gauge("alert_limit", "Its limit", one.limit, alert=one.name)
    return generate_latest(registry)
