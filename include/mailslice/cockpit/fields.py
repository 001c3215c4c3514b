"""A duty's params as fields of a form: the same names, defaults and sentences as everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from mailslice.maintenance.params import kinds
from mailslice.maintenance.registry import DutyEntry
from mailslice.model.durations import format_duration

DRY_RUN = "dry_run"
READ_ONLY = {"queue_size", "queue_audit"}
"""Duties whose plan changes nothing: nobody is asked before they go on."""
_APPROVE = "ask a person before apply, who sees the plan; no answer is no"
_GIVEN_BY_AIRFLOW = {"slices_from", "slices_before", "time_limit"}


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
    for name, info in entry.params.model_fields.items():
        if name in _GIVEN_BY_AIRFLOW:
            continue
        types = kinds(info.annotation)
        default = info.get_default(call_default_factory=True)
        title = name.replace("_", " ").capitalize()
        text, kind = info.description or "", _kind(types)
        if kind == "boolean":
            found.append(FormField(name, title, text, kind, name == DRY_RUN or default))
            if name == DRY_RUN and entry.name not in READ_ONLY:
                found.append(FormField("approve", "Approve", _APPROVE, kind, value=False))
        else:
            choices = tuple(value for each in types for value in _choices(each))
            found.append(FormField(name, title, text, kind, "", _shown(default), choices))
    return found


def _kind(types: tuple[Any, ...]) -> str:
    if bool in types:
        return "boolean"
    if int in types or float in types:
        return "number"
    if any(get_origin(one) in (list, tuple, set, frozenset) for one in types):
        return "list"
    return "text"


def _choices(one: Any) -> tuple[str, ...]:
    if get_origin(one) is Literal:
        return tuple(map(str, get_args(one)))
    if isinstance(one, type) and issubclass(one, Enum):
        return tuple(str(member.value) for member in one)
    return ()


def _shown(default: Any) -> str:
    if isinstance(default, timedelta):
        return format_duration(default)
    if isinstance(default, Enum):
        return str(default.value)
    return "" if default in (None, (), frozenset()) else str(default)
