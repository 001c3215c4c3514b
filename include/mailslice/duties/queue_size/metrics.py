"""The measurement as Prometheus text for the text file collector: one file for each queue."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from mailslice.codec.shown import shown

_GAUGES = {
    "size": ("size", "Live mails"),
    "dead": ("dead_rows", "Rows with a deleted mark that are still in the view"),
    "survivors": (
        "survivors",
        "Live mails in closed slices, which hold their slices' dead rows back",
    ),
    "unproven": ("unproven_rows", "Rows without a mark behind browseStart"),
    "oldestAgeSeconds": ("oldest_mail_age_seconds", "Age of the oldest live mail"),
    "deadLetters": ("dead_letters", "Messages in the dead letter queue"),
    "ready": ("ready", "Messages of the work queue that nobody has yet"),
    "unacknowledged": ("unacknowledged", "Messages of the work queue that consumers hold"),
    "parked": ("parked", "Messages that wait until a store answers for them"),
    "consumers": ("consumers", "Consumers of the work queue"),
    "fullest": (
        "fullest_partition_mails",
        "Rows of the fullest slice and bucket; about 10,000 are advised",
    ),
    "browseStart": ("browse_start_timestamp_seconds", "browseStart"),
    "contentStart": ("content_start_timestamp_seconds", "contentStart"),
    "lastSeenEmpty": (
        "last_seen_empty_timestamp_seconds",
        "When the broker was last seen without a message of the queue",
    ),
    "measuredAt": ("measured_timestamp_seconds", "When this was measured"),
}
"""Names and texts of gauges, by the field of the measurement. Times are ISO 8601 there."""


def prometheus_text(queue: str, measured: dict[str, Any]) -> bytes:
    """The metrics of one measurement (`plan.json`).

    An unknown value has no sample: absent means unknown, never zero.
    """
    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"mailslice_queue_{name}", text, ["queue", *labels], registry=registry)

    values = {**measured, "fullest": measured["fullest"]["mails"]}
    for field, (name, text) in _GAUGES.items():
        if (value := values.get(field)) is not None:
            number = datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value
            gauge(name, text).labels(queue).set(number)
    shape = measured["shape"]
    ages = gauge(
        "mails_by_age", "Live mails by age: up to so many minutes, each mail in one", "minutes"
    )
    for minutes, count in zip(shape["columns"], shape["total"], strict=True):
        ages.labels(queue, minutes).set(count)
    domains = gauge("mails_by_domain", "Live mails by recipient domain, the busiest", "domain")
    for row in shape["domains"]:
        domains.labels(queue, shown(row["domain"])).set(row["total"])
    return generate_latest(registry)
