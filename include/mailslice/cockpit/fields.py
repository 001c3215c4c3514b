"""A duty's params as fields of a form: the same names, defaults and sentences as everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mailslice.maintenance.params import GIVEN_BY_AIRFLOW, param_shapes
from mailslice.maintenance.registry import DutyEntry

DRY_RUN = "dry_run"
READ_ONLY = {"queue_size", "queue_audit"}
"""Duties whose plan changes nothing: nobody is asked before they go on."""
_APPROVE = "ask a person before apply, who sees the plan; no answer is no"
_KINDS = {"integer": "number", "number": "number", "array": "list", "string": "text"}


@dataclass(frozen=True, slots=True)
class FormField:
    """One field. `kind` says how its text becomes JSON; `value` is there when the form opens."""

    name: str
    title: str
    text: str
    kind: str
    value: Any = ""
    default: str = ""
    choices: tuple[str, ...] = ()


def fields(entry: DutyEntry) -> list[FormField]:
    """Queues first, where the duty is about queues. A run by hand begins as a dry run."""
    found = []
    if entry.needs_queue:
        text = "names, separated by commas; none: every queue"
        found.append(FormField("queues", "Queues", text, "list"))
    for param in param_shapes(entry.params):
        name, about = param.name, (param.name, param.title, param.text)
        if name in GIVEN_BY_AIRFLOW:
            continue
        if param.kind == "boolean":
            found.append(FormField(*about, param.kind, name == DRY_RUN or param.default))
            if name == DRY_RUN and entry.name not in READ_ONLY:
                found.append(FormField("approve", "Approve", _APPROVE, param.kind, value=False))
        else:
            default, choices = param.default_text or "", tuple(map(str, param.choices))
            found.append(FormField(*about, _KINDS[param.kind], "", default, choices))
    return found
