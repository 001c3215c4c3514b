"""Typed params of duties: command line, trigger form and docs are made from these models."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mailslice.model.durations import format_duration
from mailslice.model.errors import BadInput
from mailslice.model.settings import Duration

_FAR_LARGER = "also when the plan is far larger than what the last runs did; needs a reason"
Unusual = Annotated[bool, Field(description=_FAR_LARGER)]


class DutyParams(BaseModel):
    """Params of every duty. `Params` of a duty adds fields, each with default and description."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    WEEKLY: ClassVar[Mapping[str, object]] = {}
    """Params that the scheduled run of each Sunday sets in addition."""

    OVERRIDES: ClassVar[tuple[str, ...]] = ()
    """Params that switch a guard off. Each needs a `reason`."""

    LATER: ClassVar[tuple[str, ...]] = ()
    """Params that a step after the plan may change. The plan fixes other params of the duty."""

    reason: str | None = Field(None, description="why, for the ledger; optional")
    dry_run: bool = Field(False, description="plan and check only: nothing is changed")
    intensity: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the allowed rates (MAILSLICE_DUTY_RATE_*), or of the time, that "
        "apply may take",
    )
    time_limit: Duration | None = Field(
        None,
        description="apply begins nothing new after this long; the next run goes on. Airflow "
        "derives it from the time-out",
    )

    @model_validator(mode="after")
    def _overrides_have_a_reason(self) -> Self:
        for name in self.OVERRIDES:
            if getattr(self, name) and not (self.reason or "").strip():
                raise ValueError(f"{name} needs a reason: it switches a guard off")
        return self

    @classmethod
    def parse(cls, values: Mapping[str, object], option: str = "params") -> Self:
        """The validated params. A value of None counts as absent. Raises BadInput."""
        try:
            return cls.model_validate(
                {name: value for name, value in values.items() if value is not None}
            )
        except ValidationError as error:
            raise BadInput(
                "; ".join(cls._sentence(problem, option) for problem in error.errors())
            ) from None

    @classmethod
    def later(cls, planned: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
        """The plan's params, changed by `given`. Raises BadInput for one that the plan fixes."""
        merged = {**planned, **given}
        before, now = cls.parse(planned), cls.parse(merged)
        for name in given.keys() - {*DutyParams.model_fields, *cls.OVERRIDES, *cls.LATER}:
            if getattr(before, name) != getattr(now, name):
                raise BadInput(
                    f"{name}={given[name]!r}: the plan was made with another value, by which all "
                    "steps go; plan again"
                )
        return merged

    @classmethod
    def _sentence(cls, problem: Any, option: str) -> str:
        name = ".".join(str(part) for part in problem["loc"]) or "params"
        if problem["type"] == "extra_forbidden":
            return (
                f"{option}: {name} is not a param; allowed: {', '.join(sorted(cls.model_fields))}"
            )
        return (
            f"{option}: {name}={problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"
        )

    def as_json(self) -> dict[str, object]:
        """The params as JSON values, as `parse` reads them."""
        times = {name: format_duration(one) for name, one in self if isinstance(one, timedelta)}
        return self.model_dump(mode="json") | times


QUEUES, APPROVE, DRY_RUN = "queues", "approve", "dry_run"
_QUEUES = "one name a line; none = every queue that RabbitMQ knows"
_APPROVE = "ask a person before apply; no answer counts as no"
GIVEN_BY_AIRFLOW = frozenset({"slices_from", "slices_before", "time_limit"})
"""Params that Airflow sets, not a form: the data interval of a backfill, and the time-out."""


@dataclass(frozen=True, slots=True)
class ParamShape:
    """A param as forms, options and pages show it. `kind`: its JSON schema type.

    `types`: the Python types that its annotation allows. `default`: a JSON value. `choices`: all
    allowed values; empty where the type allows any.
    """

    name: str
    text: str
    types: tuple[Any, ...]
    kind: str
    default: Any
    choices: tuple[Any, ...]

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ").capitalize()

    @property
    def default_text(self) -> str | None:
        """The default as a page shows it; None where there is none."""
        return None if self.default in (None, []) else str(self.default)


def param_shapes(params: type[DutyParams]) -> Iterator[ParamShape]:
    """The params of a duty, in their order."""
    for name, info in params.model_fields.items():
        types = kinds(info.annotation)
        default = info.get_default(call_default_factory=True)
        if isinstance(default, timedelta):
            default = format_duration(default)
        elif isinstance(default, Enum):
            default = default.value
        elif isinstance(default, tuple | frozenset):
            default = list(default)
        choices = tuple(value for kind in types for value in _values(kind))
        yield ParamShape(name, info.description or "", types, _json_type(types), default, choices)


def form_shapes(params: type[DutyParams], *, queues: bool, approve: bool) -> Iterator[ParamShape]:
    """The fields of a run's form: the queues, the params, and whether a person approves."""
    if queues:
        yield ParamShape(QUEUES, _QUEUES, (), "array", [], ())
    for param in param_shapes(params):
        if param.name not in GIVEN_BY_AIRFLOW:
            yield param
        if param.name == DRY_RUN and approve:
            yield ParamShape(APPROVE, _APPROVE, (), "boolean", False, ())


def _json_type(types: tuple[Any, ...]) -> str:
    if bool in types:
        return "boolean"
    if int in types or float in types:
        return "integer" if int in types else "number"
    lists = (list, tuple, set, frozenset)
    return "array" if any(get_origin(kind) in lists for kind in types) else "string"


def _values(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(member.value for member in kind)
    return ()


def kinds(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: members of a union, the base of Annotated."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(kind for part in get_args(annotation) for kind in kinds(part))
    if get_origin(annotation) is Annotated:
        return kinds(get_args(annotation)[0])
    return (annotation,)
