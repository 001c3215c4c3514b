"""The measurement as Prometheus text for the text file collector: one file for each queue."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from mailslice.codec.shown import shown
from mailslice.model.names import file_name

METRICS_FOLDER = "metrics"


def file_of(queue: str) -> str:
    """The queue's file below the artifacts location; a collector reads all *.prom files."""
    return f"{METRICS_FOLDER}/mailslice-{file_name(queue)}.prom"


def prometheus_text(queue: str, measured: dict[str, Any]) -> bytes:
    """The metrics of one measurement (`plan.json`).

    An unknown value has no sample: absent means unknown, never zero.
    """
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float | None) -> None:
        if value is not None:
            Gauge(f"mailslice_queue_{name}", text, ["queue"], registry=registry).labels(queue).set(
                value
            )

    gauge("size", "Live mails", measured["size"])
    gauge("dead_rows", "Rows with a deleted mark that are still in the view", measured["dead"])
    gauge(
        "survivors",
        "Live mails in closed slices, which hold their slices' dead rows back",
        measured.get("survivors"),
    )
    gauge("unproven_rows", "Rows without a mark behind browseStart", measured["unproven"])
    gauge("oldest_mail_age_seconds", "Age of the oldest live mail", measured["oldestAgeSeconds"])
    gauge("dead_letters", "Messages in the dead letter queue", measured["deadLetters"])
    gauge("ready", "Messages of the work queue that nobody has yet", measured.get("ready"))
    gauge(
        "unacknowledged",
        "Messages of the work queue that consumers hold",
        measured.get("unacknowledged"),
    )
    gauge("parked", "Messages that wait until a store answers for them", measured.get("parked"))
    gauge("consumers", "Consumers of the work queue", measured.get("consumers"))
    gauge(
        "fullest_partition_mails",
        "Rows of the fullest slice and bucket; about 10,000 are advised",
        measured["fullest"]["mails"],
    )
    gauge("browse_start_timestamp_seconds", "browseStart", _seconds(measured["browseStart"]))
    gauge("content_start_timestamp_seconds", "contentStart", _seconds(measured["contentStart"]))
    gauge(
        "last_seen_empty_timestamp_seconds",
        "When the broker was last seen without a message of the queue",
        _seconds(measured["lastSeenEmpty"]),
    )
    gauge("measured_timestamp_seconds", "When this was measured", _seconds(measured["measuredAt"]))
    ages = Gauge(
        "mailslice_queue_mails_by_age",
        "Live mails by age: up to so many minutes, each mail in one",
        ["queue", "minutes"],
        registry=registry,
    )
    domains = Gauge(
        "mailslice_queue_mails_by_domain",
        "Live mails by recipient domain, the busiest",
        ["queue", "domain"],
        registry=registry,
    )
    for minutes, count in zip(
        measured["shape"]["columns"], measured["shape"]["total"], strict=True
    ):
        ages.labels(queue, minutes).set(count)
    for row in measured["shape"]["domains"]:
        domains.labels(queue, shown(row["domain"])).set(row["total"])
    return generate_latest(registry)


def _seconds(iso_text: str | None) -> float | None:
    return datetime.fromisoformat(iso_text).timestamp() if iso_text else None
