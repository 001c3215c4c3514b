"""The measurement as Prometheus text for the text file collector: one file for each queue."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from mailslice.codec.shown import shown
from mailslice.maintenance.metrics import Sample

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


def samples(queue: str, measured: Mapping[str, Any], *, domains: bool = True) -> Iterator[Sample]:
    """The figures of one measurement. An unknown value has none: absent means unknown, never zero.

    `domains`: mails by recipient domain, too; their values are unbounded over time.
    """
    values = {**measured, "fullest": measured["fullest"]["mails"]}
    for field, (name, text) in _GAUGES.items():
        if (value := values.get(field)) is not None:
            number = datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value
            yield Sample(f"mailslice_queue_{name}", text, {"queue": queue}, number)
    shape = measured["shape"]
    by_age = "Live mails by age: up to this many minutes, each mail in one"
    for minutes, count in zip(shape["columns"], shape["total"], strict=True):
        labels = {"queue": queue, "minutes": str(minutes)}
        yield Sample("mailslice_queue_mails_by_age", by_age, labels, count)
    by_domain = "Live mails by recipient domain, the busiest"
    for row in shape["domains"] if domains else ():
        labels = {"queue": queue, "domain": shown(row["domain"])}
        yield Sample("mailslice_queue_mails_by_domain", by_domain, labels, row["total"])
