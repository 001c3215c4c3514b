"""Which duties there are: each package below `mailslice/duties` is one, found by its folder.

A package with a module `duty` is a duty that is a class: its constant `DUTY` is one (`duty.duty`).
The others have a module a step, until they are classes, too. What must be known without loading a
duty's logic is in the package's `__init__`: the summary, NEEDS_QUEUE, SMALL_FIRST.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mailslice.duty.params import DutyParams
from mailslice.duty.request import STEPS
from mailslice.model.errors import BadInput

if TYPE_CHECKING:
    from mailslice.duty.artifacts import RunFolder
    from mailslice.duty.context import StepContext
    from mailslice.duty.runner import AnyDuty

StepFunction = Callable[["StepContext"], dict[str, object]]
_DUTIES = "mailslice.duties"


@dataclass(frozen=True, slots=True)
class DutyEntry:
    """One duty. Its step modules are imported when asked for: `duty list` must not load Spark or the gate."""

    name: str
    summary: str
    params: type[DutyParams]
    needs_queue: bool = True
    """False for a duty that is not about one queue: `NEEDS_QUEUE = False` in its package."""

    small_first: bool = False
    """Whether small work is done in the process: `SMALL_FIRST = True` in its package."""

    def step(self, step: str) -> StepFunction:
        """The function `run(context) -> summary` of one of the five steps."""
        if step not in STEPS:
            raise BadInput(f"step {step!r}: allowed are {', '.join(STEPS)}")
        if (duty := self._duty()) is not None:
            from mailslice.duty import runner

            return runner.step_of(duty, step)
        function: StepFunction = importlib.import_module(f"{_DUTIES}.{self.name}.{step}").run
        return function

    def bulky(self, step: str) -> frozenset[str]:
        """Keys of the step's summary that are kept in its file alone: a list of every slice is nothing for a terminal, nor for Airflow's database."""
        if (duty := self._duty()) is not None:
            return duty.bulky | {"decided"}
        return frozenset(
            getattr(importlib.import_module(f"{_DUTIES}.{self.name}.{step}"), "BULKY", ())
        )

    def partial_report(self, folder: RunFolder) -> dict[str, Any]:
        """What the run's files say so far, in the report's fields: for a run that ended early."""
        if (duty := self._duty()) is not None:
            from mailslice.duty import runner

            return runner.partial_report(duty, folder)
        partial = getattr(importlib.import_module(f"{_DUTIES}.{self.name}.report"), "partial", None)
        found: dict[str, Any] = partial(folder) if partial is not None else {}
        return found

    def _duty(self) -> AnyDuty | None:
        """The duty where it is a class."""
        module = f"{_DUTIES}.{self.name}.duty"
        if importlib.util.find_spec(module) is None:
            return None
        duty: AnyDuty = importlib.import_module(module).DUTY
        return duty


def names() -> list[str]:
    """The names of all duties, sorted."""
    package = importlib.import_module(_DUTIES)
    return sorted(found.name for found in pkgutil.iter_modules(package.__path__) if found.ispkg)


def load(name: str) -> DutyEntry:
    """The duty of that name. Raises BadInput naming the known ones."""
    known = names()
    if name not in known:
        raise BadInput(f"duty {name!r} is not known; known: {', '.join(known)}")
    package = importlib.import_module(f"{_DUTIES}.{name}")
    params: type[DutyParams] = importlib.import_module(f"{_DUTIES}.{name}.params").Params
    return DutyEntry(
        name,
        (package.__doc__ or name).strip().splitlines()[0],
        params,
        getattr(package, "NEEDS_QUEUE", True),
        getattr(package, "SMALL_FIRST", False),
    )
