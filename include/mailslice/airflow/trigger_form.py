"""The trigger form of a DAG, made of the duty's params: names, defaults, bounds, sentences."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from airflow.sdk import Param
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from mailslice.airflow.dag_doc import GIVEN_BY_AIRFLOW, OF_THE_DAG
from mailslice.airflow.run_request import APPROVE, DRY_RUN, QUEUES
from mailslice.maintenance.params import kinds
from mailslice.maintenance.registry import load
from mailslice.model.durations import format_duration

_DURATION = r"^(\s*\d+(\.\d+)?\s*(ms|s|m|h|d|w)|P[0-9DTHMSW.]+)?\s*$"
_BOUNDS = {
    Ge: ("ge", "minimum"),
    Gt: ("gt", "exclusiveMinimum"),
    Le: ("le", "maximum"),
    Lt: ("lt", "exclusiveMaximum"),
}


def form_of(duty: str, *, dry: bool, approve: bool | None) -> dict[str, Param]:
    """The params of the DAG of that duty; `queues` first where it works on queues.

    `dry`: whether a run by hand is a dry run unless its form or conf says no. `approve`: default
    of the param that asks a person before apply; None: there is no such param.
    """
    entry = load(duty)
    params = {QUEUES: _queues()} if entry.needs_queue else {}
    for name, info in entry.params.model_fields.items():
        if name in GIVEN_BY_AIRFLOW:
            continue
        params[name] = _param(name, info)
        if name == DRY_RUN:
            params[name].value = dry
            if approve is not None:
                params[APPROVE] = _approve(approve)
    return params


def _approve(default: bool) -> Param:
    text = OF_THE_DAG[APPROVE]
    if default:
        text += "; the settings of this deployment ask in any case"
    return Param(default, type="boolean", title="Approve", description=text)


def _queues() -> Param:
    return Param(
        [],
        type=["null", "array"],
        items={"type": "string"},
        title="Queues",
        description=OF_THE_DAG[QUEUES],
    )


def _param(name: str, info: FieldInfo) -> Param:
    types = kinds(info.annotation)
    kind, more = _schema(types, info)
    more |= {"title": name.replace("_", " ").capitalize(), "description": info.description}
    default = info.get_default(call_default_factory=True)
    if isinstance(default, timedelta):
        default = format_duration(default)
    elif isinstance(default, Enum):
        default = default.value
    elif isinstance(default, tuple | frozenset):
        default = list(default)
    nullable = type(None) in types or kind == "array"
    return Param(default, type=["null", kind] if nullable else kind, **more)


def _schema(types: tuple[Any, ...], info: FieldInfo) -> tuple[str, dict[str, Any]]:
    """The JSON schema type of a param, and what else the form must hold it to."""
    if bool in types:
        return "boolean", {}
    if timedelta in types:
        return "string", {"pattern": _DURATION}
    if int in types or float in types:
        bounds = {
            name: getattr(rule, attribute)
            for rule in info.metadata
            for kind, (attribute, name) in _BOUNDS.items()
            if isinstance(rule, kind)
        }
        return ("integer" if int in types else "number"), bounds
    if any(get_origin(kind) in (list, tuple, set, frozenset) for kind in types):
        return "array", {"items": {"type": "string"}}
    allowed = [value for kind in types for value in _values(kind)]
    if not allowed:
        return "string", {"maxLength": 500}
    return "string", {"enum": [*allowed, *([None] if type(None) in types else [])]}


def _values(kind: Any) -> list[Any]:
    """The values of a type that names them all; none for every other type."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return (
        [member.value for member in kind]
        if isinstance(kind, type) and issubclass(kind, Enum)
        else []
    )
