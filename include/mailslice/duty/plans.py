"""What the plans of all duties have in common: a digest over all that apply acts by, and what is asked of a plan before anybody acts by it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from mailslice.model.errors import PlanRefused

if TYPE_CHECKING:
    from mailslice.duty.context import StepContext

OLDEST_PLAN = timedelta(hours=24)
_HOUR = timedelta(hours=1)


class Planned(Protocol):
    """A plan, whatever it is about."""

    @property
    def digest(self) -> str:
        """`digest_of` all that apply acts by."""

    @property
    def made_at(self) -> datetime:
        """When the stores were read for it, or right after."""


def digest_of(decided: Mapping[str, object]) -> str:
    """SHA-256 of what a plan decided, as JSON values: of very many things it holds a digest of their own."""
    return hashlib.sha256(
        json.dumps(decided, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


@contextmanager
def reading(run: str, queue: str | None = None) -> Iterator[None]:
    """Around the building of a plan from its plan.json. Raises PlanRefused where that fails: it was edited, or another version wrote it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PlanRefused(
            f"plan.json of {_of(run, queue)} cannot be read ({type(error).__name__}: {error}): plan again"
        ) from error


def require_same(
    digest: str,
    summary: Mapping[str, Any],
    plan_of: tuple[str, str | None],
    run: str,
    queue: str | None = None,
) -> None:
    """Raises PlanRefused when the plan of that digest is not what its summary says, or is of another (run, queue)."""
    if digest != summary.get("planDigest"):
        raise PlanRefused(
            f"plan.json of {_of(run, queue)} was changed: its digest is {digest}, it says {summary.get('planDigest')}; plan again"
        )
    if plan_of != (run, queue):
        raise PlanRefused(f"the plan is of {_of(*plan_of)}, not of {_of(run, queue)}")


def require_gate(context: StepContext, plan: Planned, oldest: timedelta = OLDEST_PLAN) -> None:
    """Raises PlanRefused for a plan that the gate did not pass, or that is older than `oldest`."""
    run, check = context.request.run, context.need("check")
    if not check.get("success") or check.get("planDigest") != plan.digest:
        raise PlanRefused(
            f"run {run}: the gate did not pass this plan ({plan.digest}): check comes first"
        )
    age = context.clock() - plan.made_at
    if age > oldest:
        raise PlanRefused(
            f"the plan of run {run} is {age / _HOUR:.1f} h old; allowed are {oldest / _HOUR:.0f} h: plan again"
        )


def _of(run: str, queue: str | None) -> str:
    return f"run {run}" if queue is None else f"run {run} on queue {queue}"
