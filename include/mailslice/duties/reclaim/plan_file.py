"""plan.json: which nodes are to be reclaimed and which tables, typed, and the digest over it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mailslice.duty.artifacts import iso
from mailslice.model.errors import PlanRefused

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
        return {"run": self.run, "madeAt": iso(self.made_at), "keyspace": self.keyspace, "tables": list(self.tables), "nodes": list(self.nodes)}

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`."""
        return hashlib.sha256(json.dumps(self.decided(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_plan(summary: Mapping[str, Any], run: str) -> Plan:
    """The plan in a plan.json. Raises PlanRefused when it is another run's, or was changed since it was made."""
    try:
        value = summary["decided"]
        plan = Plan(value["run"], datetime.fromisoformat(value["madeAt"]), value["keyspace"], tuple(value["tables"]), tuple(value["nodes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PlanRefused(f"plan.json of run {run} cannot be read ({type(error).__name__}: {error}): plan again") from error
    if plan.digest != summary.get("planDigest"):
        raise PlanRefused(f"plan.json of run {run} was changed: its digest is {plan.digest}, it says {summary.get('planDigest')}; plan again")
    if plan.run != run:
        raise PlanRefused(f"the plan is of run {plan.run}, not of run {run}")
    return plan
