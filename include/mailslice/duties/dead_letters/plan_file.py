"""plan.json and plan/letters.parquet: every letter that was seen and what becomes of it, and the digest over all of it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from typing import Any

from mailslice.codec.shown import shown
from mailslice.duties.dead_letters.decide import Action, Decision
from mailslice.duty.artifacts import iso
from mailslice.duty.context import StepContext
from mailslice.duty.plans import digest_of
from mailslice.model.errors import PlanRefused

FILE = "plan/letters.parquet"
"""In the run's folder."""


@dataclass(frozen=True, slots=True)
class PlannedLetter:
    """One letter as the plan has it; fields are the columns of the file. Ids and times are text, empty where there is none; no addresses."""

    position: int
    key: str
    action: str
    why: str
    cause: str
    enqueue_id: str
    name: str
    died_at: str
    redrives: int
    size: int

    @classmethod
    def of(cls, decision: Decision) -> PlannedLetter:
        """From a decision."""
        judged, letter = decision.judged, decision.judged.letter
        enqueue_id = "" if letter.enqueue_id is None else str(letter.enqueue_id)
        died = iso(letter.died_at) or ""
        return cls(
            letter.position,
            letter.key,
            decision.action.value,
            decision.why,
            judged.cause.value,
            enqueue_id,
            shown(letter.name or ""),
            died,
            judged.redrives,
            letter.size,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may do with which letters."""

    run: str
    queue: str
    made_at: datetime
    unseen: int
    letters: tuple[PlannedLetter, ...]

    @property
    def acted(self) -> tuple[PlannedLetter, ...]:
        """Letters that are not kept."""
        return tuple(letter for letter in self.letters if letter.action != Action.KEEP)

    def count(self, action: Action) -> int:
        """Letters of one action."""
        return sum(1 for letter in self.letters if letter.action == action)

    def decided(self) -> dict[str, object]:
        """All that apply acts by, as JSON values; the letters by their digest."""
        lines = (json.dumps(astuple(letter), ensure_ascii=False) for letter in self.letters)
        rows = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
        return {
            "run": self.run,
            "queue": self.queue,
            "madeAt": iso(self.made_at),
            "unseen": self.unseen,
            "count": len(self.letters),
            "letters": rows,
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `decided`."""
        return digest_of(self.decided())


def write_plan(context: StepContext, plan: Plan) -> None:
    """Write the letters, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"str": pa.string(), "int": pa.int64()}
    schema = pa.schema(
        [
            pa.field(each.name, types[str(each.type)], nullable=False)
            for each in fields(PlannedLetter)
        ]
    )
    table = pa.Table.from_pylist(
        [dict(zip(schema.names, astuple(letter), strict=True)) for letter in plan.letters],
        schema=schema,
    )
    coming = io.BytesIO()
    pq.write_table(table, coming, compression="zstd")
    context.folder.artifacts.write(context.folder.file(FILE), coming.getvalue())


def read_plan(context: StepContext) -> Plan:
    """The plan of this run. Raises PlanRefused when it is another run's, or was changed since it was made."""
    summary, run, queue = context.need("plan"), context.request.run, context.queue
    try:
        decided = summary["decided"]
        plan = Plan(
            decided["run"],
            decided["queue"],
            datetime.fromisoformat(decided["madeAt"]),
            decided["unseen"],
            _letters(context),
        )
        same = (plan.run, plan.queue) == (run, queue)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise PlanRefused(
            f"the plan of run {run} on queue {queue} cannot be read ({type(error).__name__}: {error}): plan again"
        ) from error
    if not same:
        raise PlanRefused(
            f"the plan is of run {plan.run} on queue {plan.queue}, not of run {run} on queue {queue}"
        )
    if plan.digest != summary.get("planDigest") or plan.decided() != decided:
        raise PlanRefused(
            f"the plan of run {run} on queue {queue} was changed: its digest is {plan.digest}, it says {summary.get('planDigest')}; plan again"
        )
    return plan


def _letters(context: StepContext) -> tuple[PlannedLetter, ...]:
    import pyarrow.parquet as pq

    data = context.folder.artifacts.read(context.folder.file(FILE))
    if data is None:
        raise ValueError(f"no {FILE}")
    rows: Sequence[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
    return tuple(PlannedLetter(**row) for row in rows)
