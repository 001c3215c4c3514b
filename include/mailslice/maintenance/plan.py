"""The plan of a run: a frozen model in plan.json, which its digest protects."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import AwareDatetime, ValidationError

from mailslice.engine.row_files import RowFile, RowGroup
from mailslice.maintenance.json_model import JsonModel
from mailslice.maintenance.run import Run
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import QueueName

OLDEST_PLAN = timedelta(hours=24)
_HOUR = timedelta(hours=1)


class Plan(JsonModel, ABC):
    """Everything that apply acts on. `as_json` is the field `decided` of plan.json.

    A field is a JSON value, a datetime or a timedelta; a JsonModel, dataclass or NamedTuple of
    these (a NamedTuple is a short list, for one entry a partition); or a RowFile or RowGroup for
    data too large for JSON. Text must not have lone surrogates: see `codec.shown`.
    """

    run: str
    made_at: AwareDatetime
    """Taken before the stores are read, or right after. The plan's age counts from here."""

    @property
    @abstractmethod
    def planned(self) -> int:
        """The number of items that apply is to act on. Reports count the same items."""

    @property
    def has_work(self) -> bool:
        """Whether apply is to run. Override it where there is work beside the planned items."""
        return self.planned > 0

    @property
    def digest(self) -> str:
        """SHA-256 of `as_json`, which contains the digest of every file."""
        return digest_of(self.as_json())

    def files(self) -> frozenset[str]:
        """Files of the plan's RowFiles and RowGroups, alone or in a tuple. Others are removed."""
        values = (getattr(self, name) for name in type(self).model_fields)
        tuples = (value if isinstance(value, tuple) else (value,) for value in values)
        parts = (part for items in tuples for part in items)
        return frozenset(part.file for part in parts if isinstance(part, (RowFile, RowGroup)))


class QueuePlan(Plan, ABC):
    """A plan about one queue."""

    queue: QueueName


PlanT = TypeVar("PlanT", bound=Plan)


def load_plan(context: Run, plan_type: type[PlanT]) -> PlanT:
    """The plan of this run. Raises PlanRefused as `read_plan`."""
    request = context.request
    return read_plan(context.need("plan"), plan_type, request.run, request.reported_queue)


def load_checked_plan(context: Run, plan_type: type[PlanT], max_age: timedelta) -> PlanT:
    """As `load_plan`. Raises PlanRefused also when the gate did not pass it, or it is too old."""
    plan, run, check = load_plan(context, plan_type), context.request.run, context.need("check")
    if not check.get("success") or check.get("planDigest") != plan.digest:
        raise PlanRefused(
            f"run {run}: the gate did not pass this plan ({plan.digest}): check comes first"
        )
    age = context.clock() - plan.made_at
    if age > max_age:
        raise PlanRefused(
            f"the plan of run {run} is {age / _HOUR:.1f} h old; allowed are "
            f"{max_age / _HOUR:.0f} h: plan again"
        )
    return plan


def read_plan(
    summary: Mapping[str, Any], plan_type: type[PlanT], run: str, queue: str | None
) -> PlanT:
    """The plan in a plan.json. Raises PlanRefused when it is of another run, or was changed.

    The plan's files are not read here: `row_file` compares their digests when it reads them.
    """
    subject = _subject(run, queue)
    try:
        plan = plan_type.model_validate(summary.get("decided"))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PlanRefused(
            f"plan.json of {subject} cannot be read ({_problem(error)}): plan again"
        ) from error
    if plan.digest != summary.get("planDigest"):
        raise PlanRefused(
            f"plan.json of {subject} was changed: its digest is {plan.digest}, "
            f"it says {summary.get('planDigest')}; plan again"
        )
    planned_queue = plan.queue if isinstance(plan, QueuePlan) else None
    if (plan.run, planned_queue) != (run, queue):
        raise PlanRefused(f"the plan is of {_subject(plan.run, planned_queue)}, not of {subject}")
    return plan


def digest_of(decided: Mapping[str, object]) -> str:
    """SHA-256 of JSON values. The order of names does not matter."""
    text = json.dumps(decided, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _problem(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'decided'}: {first['msg']}"


def _subject(run: str, queue: str | None) -> str:
    return f"run {run}" if queue is None else f"run {run} on queue {queue}"
