"""Step 3: publish what was measured: the Prometheus text, the picture, and the broker's sample. Touches no mail and none of James' tables."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from mailslice.duties.queue_size.measured import measured
from mailslice.duties.queue_size.metrics import file_of, prometheus_text
from mailslice.duties.queue_size.plot import FILE, slices_svg
from mailslice.duty.context import StepContext
from mailslice.stores.cassandra.own import QueueSample


def run(context: StepContext) -> dict[str, Any]:
    """What was published, with digests. May run any number of times."""
    found = measured(context)
    place = context.folder.artifacts
    text, picture = prometheus_text(context.queue, found), slices_svg(context.queue, found)
    place.write(context.folder.file(FILE), picture)
    place.write(file_of(context.queue), text)
    if found["passes"]:
        first, second = (datetime.fromisoformat(each) for each in found["passes"])
        context.stores.own.queue_samples.save(context.queue, QueueSample(first, second))
    return {
        "metrics": place.uri(file_of(context.queue)),
        "plot": place.uri(context.folder.file(FILE)),
        "digests": {
            "metrics": hashlib.sha256(text).hexdigest(),
            "plot": hashlib.sha256(picture).hexdigest(),
        },
    }
