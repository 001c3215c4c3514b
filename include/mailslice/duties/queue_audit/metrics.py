"""The verdicts as Prometheus text, for the text file collector: one file a queue, replaced whole."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from mailslice.model.names import file_name

NAME = "mailslice_audit_mails"


def file_of(queue: str) -> str:
    """The file of a queue below the artifacts location; a collector takes every *.prom of the folder."""
    return f"metrics/mailslice-audit-{file_name(queue)}.prom"


def prometheus_text(queue: str, verdicts: Mapping[str, int]) -> bytes:
    """Old live mails by verdict, zeros too: emitted when idle."""
    registry = CollectorRegistry()
    gauge = Gauge(
        NAME,
        "Old live mails by the verdict of the last audit",
        ["queue", "verdict"],
        registry=registry,
    )
    for verdict, count in verdicts.items():
        gauge.labels(queue, verdict).set(count)
    return bytes(generate_latest(registry))
