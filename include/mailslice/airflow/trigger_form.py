"""The trigger form of a DAG, from the duty's params: names, defaults, bounds, descriptions."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow.sdk import Param
from pydantic.fields import FieldInfo

from mailslice.maintenance.params import APPROVE, DRY_RUN, ParamShape, form_shapes
from mailslice.maintenance.registry import load

_DURATION = r"^(\s*\d+(\.\d+)?\s*(ms|s|m|h|d|w)|\s*0|P[0-9DTHMSW.]+)?\s*$"
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Bound of a field, as an attribute of pydantic's rule -> its name in a JSON schema."""


def form_of(duty: str, *, dry: bool, approve: bool | None) -> dict[str, Param]:
    """The params of the DAG of that duty; `queues` first where it works on queues.

    `dry`: whether a run by hand is a dry run unless its form or conf says no. `approve`: default
    of the param that asks a person before apply; None: there is no such param.
    """
    entry = load(duty)
    fields, params = entry.params.model_fields, {}
    for param in form_shapes(entry.params, queues=entry.needs_queue, approve=approve is not None):
        field = param
        if param.name == DRY_RUN:
            field = replace(param, default=dry)
        elif param.name == APPROVE and approve:
            text = f"{param.text}; the settings of this deployment ask in any case"
            field = replace(param, default=True, text=text)
        params[param.name] = _param(field, fields.get(param.name))
    return params


def _param(param: ParamShape, info: FieldInfo | None) -> Param:
    nullable = type(None) in param.types or param.kind == "array"
    return Param(
        param.default,
        type=["null", param.kind] if nullable else param.kind,
        title=param.title,
        description=param.text,
        **_bounds(param, info),
    )


def _bounds(param: ParamShape, info: FieldInfo | None) -> dict[str, Any]:
    if info is not None and param.kind in {"integer", "number"}:
        return {
            name: getattr(rule, bound)
            for rule in info.metadata
            for bound, name in _BOUNDS.items()
            if hasattr(rule, bound)
        }
    if param.kind == "array":
        return {"items": {"type": "string"}}
    if param.kind == "boolean":
        return {}
    if timedelta in param.types:
        return {"pattern": _DURATION}
    null = [None] if type(None) in param.types else []
    return {"enum": [*param.choices, *null]} if param.choices else {"maxLength": 500}
