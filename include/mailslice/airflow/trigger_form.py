"""The trigger form of a DAG, made of the duty's params: names, defaults, bounds, sentences."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from mailslice.airflow.dag_doc import OF_THE_DAG
from mailslice.airflow.run_request import APPROVE, DRY_RUN, QUEUES
from mailslice.maintenance.params import GIVEN_BY_AIRFLOW, ParamShape, param_shapes
from mailslice.maintenance.registry import load

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
    for param in param_shapes(entry.params):
        if param.name in GIVEN_BY_AIRFLOW:
            continue
        params[param.name] = _param(param, entry.params.model_fields[param.name])
        if param.name == DRY_RUN:
            params[param.name].value = dry
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


def _param(param: ParamShape, info: FieldInfo) -> Param:
    nullable = type(None) in param.types or param.kind == "array"
    return Param(
        param.default,
        type=["null", param.kind] if nullable else param.kind,
        title=param.title,
        description=param.text,
        **_bounds(param, info),
    )


def _bounds(param: ParamShape, info: FieldInfo) -> dict[str, Any]:
    if param.kind in {"integer", "number"}:
        return {
            name: getattr(rule, attribute)
            for rule in info.metadata
            for kind, (attribute, name) in _BOUNDS.items()
            if isinstance(rule, kind)
        }
    if param.kind == "array":
        return {"items": {"type": "string"}}
    if param.kind == "boolean":
        return {}
    if timedelta in param.types:
        return {"pattern": _DURATION}
    nothing = [None] if type(None) in param.types else []
    return {"enum": [*param.choices, *nothing]} if param.choices else {"maxLength": 500}
