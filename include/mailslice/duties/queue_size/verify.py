"""Step 4: read back what was published, as its readers will."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from mailslice.duties.queue_size.measured import measured
from mailslice.duties.queue_size.metrics import file_of
from mailslice.duties.queue_size.plot import FILE
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.quality.gate import Expectation, Frame


def run(context: StepContext) -> dict[str, Any]:
    """Whether the published files say what was measured. Raises GateFailed."""
    return judged(context, "verify", [published(context)])


def published(context: StepContext) -> Frame:
    """One row: the files and the sample, as they are read back."""
    found, applied = measured(context), context.need("apply")
    text = context.folder.artifacts.read(file_of(context.queue)) or b""
    picture = context.folder.artifacts.read(context.folder.file(FILE)) or b""
    row = {
        "size_published": size_in(text, context.queue),
        "picture_differs": int(hashlib.sha256(picture).hexdigest() != applied["digests"]["plot"]),
        "sample_lost": int(_sample_lost(context, found)),
    }
    expect = [
        Expectation.equal(
            "size_published", found["size"], "The metrics file says the size that was measured."
        ),
        Expectation.equal("picture_differs", 0, "The picture is the one that was drawn."),
        Expectation.equal(
            "sample_lost",
            0,
            "A broker that was seen empty is remembered as such, at that moment or a later one.",
        ),
    ]
    return Frame("published", [row], expect)


def size_in(text: bytes, queue: str) -> float:
    """The size that a metrics file gives for the queue; -1 without one."""
    samples = (
        sample
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    )
    return next(
        (
            sample.value
            for sample in samples
            if sample.name == "mailslice_queue_size" and sample.labels.get("queue") == queue
        ),
        -1.0,
    )


def _sample_lost(context: StepContext, found: dict[str, Any]) -> bool:
    if not found["passes"]:
        return False
    kept = context.stores.own.queue_samples.read(context.queue)
    return kept is None or int(kept.first_pass.timestamp() * 1000) < int(
        datetime.fromisoformat(found["passes"][0]).timestamp() * 1000
    )
