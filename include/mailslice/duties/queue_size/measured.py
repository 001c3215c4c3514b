"""What was measured, as plan.json has it: all of it is inside its digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mailslice.duty.artifacts import plain
from mailslice.duty.context import StepContext
from mailslice.duty.plans import digest_of, require_same

_OF_THE_STEP = frozenset(
    {"run", "duty", "queue", "step", "started", "seconds", "planDigest", "engine"}
)
"""What the road adds to a step's summary."""


def digest(found: Mapping[str, Any]) -> str:
    """Of the whole measurement, so that a report names the very one."""
    told = {name: value for name, value in found.items() if name not in _OF_THE_STEP}
    return digest_of(json.loads(json.dumps(told, default=plain)))


def measured(context: StepContext) -> dict[str, Any]:
    """The measurement of this run. Raises PlanRefused when plan.json was changed."""
    found, run = context.need("plan"), context.request.run
    require_same(digest(found), found, (found["run"], found["queue"]), run, context.queue)
    return found
