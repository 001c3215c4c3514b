"""The verdicts as Prometheus text: one file a queue, replaced whole."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from mailslice.model.names import file_name

_NAME = "mailslice_audit_mails"


def file_of(queue: str) -> str:
    """The file of a queue below the artifacts location; a collector takes the folder's *.prom."""
    return f"metrics/mailslice-audit-{file_name(queue)}.prom"


def prometheus_text(queue: str, verdicts: Mapping[str, int]) -> bytes:
    """Old live mails by verdict, zeros too: emitted when idle."""
    registry, text = CollectorRegistry(), "Old live mails by the verdict of the last audit"
    gauge = Gauge(_NAME, text, ["queue", "verdict"], registry=registry)
    for verdict, count in verdicts.items():
        gauge.labels(queue, verdict).set(count)
    return bytes(generate_latest(registry))


def metrics_in(text: bytes, queue: str) -> dict[str, float]:
    """Mails by verdict, as a metrics file has them of the queue."""
    return {
        sample.labels["verdict"]: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == _NAME and sample.labels["queue"] == queue
    }
