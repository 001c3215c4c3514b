"""plan.json: which nodes are to be reclaimed and which tables, typed, and the digest over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.duty.artifacts import iso
from mailslice.duty.plans import digest_of, reading, require_same

PROGRESS = "progress.json"
"""In the run's folder: what apply's summary would say, after each node."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may do: flush and garbagecollect `tables` of `keyspace` on `nodes` (addresses), in this order."""

    run: str
    made_at: datetime
    keyspace: str
    tables: tuple[str, ...]
    nodes: tuple[str, ...]

    def decided(self) -> dict[str, object]:
        """All that apply acts by, as JSON values."""
        return {
            "run": self.run,
            "madeAt": iso(self.made_at),
            "keyspace": self.keyspace,
            "tables": list(self.tables),
            "nodes": list(self.nodes),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`."""
        return digest_of(self.decided())


def read_plan(summary: Mapping[str, Any], run: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    with reading(run):
        value = summary["decided"]
        plan = Plan(
            value["run"],
            datetime.fromisoformat(value["madeAt"]),
            value["keyspace"],
            tuple(value["tables"]),
            tuple(value["nodes"]),
        )
    require_same(plan.digest, summary, (plan.run, None), run)
    return plan
