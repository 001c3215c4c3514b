"""Registered plans: whose rows are deleted, or were about to be, and whose marks still wait for a proof. Their ids are in the plans' own files.

By run and digest: a run whose tasks are cleared and tried again makes another plan, and must not forget the ids of the first.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mailslice.duties.queue_cleanup.plan_file import PARTS, Plan, read_plan
from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import StepContext
from mailslice.model.errors import BadSetting, PlanRefused
from mailslice.model.mail import Place
from mailslice.spark.compare import low_half
from mailslice.spark.ids import low_halves, of_texts
from mailslice.spark.plan_files import Digest, PlanReader, digest_of_table
from mailslice.spark.slices import instant
from mailslice.stores.cassandra.own import PendingMark

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

log = logging.getLogger(__name__)

LEFT = "marks-left.json"
"""How the name of a file in a run's folder ends that holds the marks that are still to go when most of a plan's are dropped."""
_DIGITS = 12

Left = tuple[str, int, int]
"""An id whose mark is to go, and where its row was: slice start in ms, bucket."""


def read_left(value: Mapping[str, Any]) -> tuple[Left, ...]:
    """The marks that a file of LEFT holds. Raises KeyError, TypeError or ValueError for what is none."""
    return tuple((str(one), int(start), int(bucket)) for one, start, bucket in value["left"])


def digest_of_left(left: Sequence[Left]) -> str:
    """SHA-256 of all of them, in any order: kept in pending_marks, so that nobody adds an id to the file."""
    return hashlib.sha256(json.dumps(sorted(left)).encode()).hexdigest()


def register(context: StepContext, plan: Plan, rows: int) -> None:
    """Remember, before any row goes, that this plan's marks are to go when a proof is there."""
    if rows:
        file = f"plan-{plan.digest[:_DIGITS]}.json"
        context.folder.write_json(file, {"decided": plan.decided(), "planDigest": plan.digest})
        pending = PendingMark(
            f"{plan.run}#{plan.digest[:_DIGITS]}",
            context.folder.file(file),
            str(plan.rows),
            rows,
            plan.marks_read,
        )
        context.stores.own.pending_marks.save(context.queue, pending)


def registered_files(context: StepContext) -> set[str]:
    """The Parquet files of this run that a registered plan of an earlier try needs."""
    run = context.request.run
    found = [
        each
        for each in context.stores.own.pending_marks.list(context.queue)
        if each.run.partition("#")[0] == run
    ]
    plans = [OpenedPending.open(context, None, each).plan for each in found]
    return {place.part.file for plan in plans if plan is not None for place in plan.places}


@dataclass(frozen=True)
class OpenedPending:
    """A registered plan, opened. `problem` says why its files cannot be used."""

    pending: PendingMark
    folder: RunFolder
    plan: Plan | None = None
    left: tuple[Left, ...] = ()
    places: tuple[Place, ...] = ()
    problem: str | None = None

    @classmethod
    def open(
        cls, context: StepContext, current: Plan | None, pending: PendingMark
    ) -> OpenedPending:
        run = pending.run.partition("#")[0]
        folder = replace(context.folder, run=run)
        file = pending.plan.rpartition("/")[2]
        try:
            if file.endswith(LEFT):
                left = read_left(folder.read_json(file) or {})
                digest, opened = (
                    digest_of_left(left),
                    cls(
                        pending,
                        folder,
                        None,
                        left,
                        tuple({Place(instant(start), bucket) for _, start, bucket in left}),
                    ),
                )
            else:
                plan = read_plan(folder.read_json(file) or {}, run, context.queue)
                if current is not None and plan.digest == current.digest:
                    return cls(pending, folder, current)
                digest, opened = (
                    str(plan.rows),
                    cls(pending, folder, plan, (), tuple({place.place for place in plan.places})),
                )
        except (KeyError, TypeError, ValueError, OverflowError, BadSetting, PlanRefused) as error:
            return cls(
                pending, folder, problem=f"the plan of run {pending.run} cannot be used: {error}"
            )
        if digest != pending.digest:
            return cls(
                pending,
                folder,
                problem=f"the plan of run {pending.run} cannot be used: its digest is another",
            )
        return opened

    def low_halves(self, context: StepContext) -> npt.NDArray[np.uint64] | None:
        """The low halves of the ids whose marks wait; None when the files cannot be used: then nobody knows them, and they never go by this plan."""
        import numpy as np

        if self.problem is not None:
            return None
        if self.plan is None:
            return np.fromiter((low_half(one) for one, _, _ in self.left), dtype=np.uint64)
        try:
            return self._planned(context, self.plan)
        except Exception as error:  # noqa: BLE001 - of a file that broke or was changed anything may be raised
            log.warning(
                "the plan files of run %s cannot be used (%s: %s): its marks count as none that wait",
                self.pending.run,
                type(error).__name__,
                error,
            )
            return None

    def _planned(self, context: StepContext, plan: Plan) -> npt.NDArray[np.uint64]:
        import numpy as np

        place, found, digest = context.folder.artifacts, [np.empty(0, np.uint64)], Digest()
        with PlanReader(place.filesystem, place.path(self.folder.file(PARTS))) as reader:
            for planned in plan.places:
                for table in reader.groups(planned.part):
                    found.append(low_halves(of_texts(table.column("enqueue_id"))))
                    digest += digest_of_table(table)
        if digest != plan.rows:
            raise PlanRefused("they were changed")
        return np.concatenate(found)

    def keep_only(self, context: StepContext, left: Sequence[Left]) -> None:
        """Remember these marks alone; forget the plan when there are none.

        Each list is a file of its own, by its digest: of a run that is killed before the row names the new one, the old one is still there.
        """
        table, digest = context.stores.own.pending_marks, digest_of_left(left)
        if not left:
            table.delete(context.queue, self.pending.run)
        elif digest != self.pending.digest:
            file = f"{self.pending.run.rpartition('#')[2]}-{digest[:_DIGITS]}-{LEFT}"
            self.folder.write_json(file, {"left": left})
            table.save(
                context.queue,
                replace(self.pending, plan=self.folder.file(file), digest=digest, marks=len(left)),
            )
        else:
            return
        if self.pending.plan.endswith(LEFT):
            context.folder.artifacts.remove(self.pending.plan)
