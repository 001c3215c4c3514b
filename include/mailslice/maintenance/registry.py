"""The registry of duties: each package below `mailslice/duties` is one, found by its folder.

Its module `duty` has the constant `DUTY` (`maintenance.duty`). The package's `__init__` has what
must be known without loading that: the summary, NEEDS_QUEUE, SMALL_FIRST.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mailslice.maintenance.params import DutyParams
from mailslice.model.errors import BadInput

if TYPE_CHECKING:
    from mailslice.maintenance.duty import AnyDuty

_DUTIES = "mailslice.duties"


@dataclass(frozen=True, slots=True)
class DutyEntry:
    """A duty without its logic: `duty list` must load neither Spark nor a gate."""

    name: str
    summary: str
    params: type[DutyParams]
    needs_queue: bool = True
    """False for a duty that is not about one queue: `NEEDS_QUEUE = False` in its package."""
    small_first: bool = False
    """Whether small work is done without Spark: `SMALL_FIRST = True` in its package."""

    @property
    def logic(self) -> AnyDuty:
        """The duty itself, imported now."""
        duty: AnyDuty = importlib.import_module(f"{_DUTIES}.{self.name}.duty").DUTY
        return duty


def names() -> list[str]:
    """The names of all duties, sorted."""
    package = importlib.import_module(_DUTIES)
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)


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
