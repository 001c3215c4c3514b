"""Typed params of duties: one frozen pydantic model a duty, from which command line, trigger form and docs are made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mailslice.model.durations import format_duration
from mailslice.model.errors import BadInput


class DutyParams(BaseModel):
    """What every duty takes. A duty's `params.py` has a subclass `Params` with its own fields, each with a default and a description."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: str | None = Field(None, description="why, for the ledger; optional")
    dry_run: bool = Field(False, description="plan and check only: nothing is changed")

    @classmethod
    def parse(cls, given: Mapping[str, object], place: str = "params") -> Self:
        """The checked params; None and absent mean the default. Raises BadInput naming the param, its value and what is allowed."""
        try:
            return cls.model_validate({name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            raise BadInput("; ".join(cls._sentence(problem, place) for problem in error.errors())) from None

    @classmethod
    def _sentence(cls, problem: Any, place: str) -> str:
        name = ".".join(str(part) for part in problem["loc"]) or "params"
        if problem["type"] == "extra_forbidden":
            return f"{place}: {name} is not a param; allowed: {', '.join(sorted(cls.model_fields))}"
        return f"{place}: {name}={problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"

    def as_json(self) -> dict[str, object]:
        """The params as JSON values, as `parse` reads them."""
        shown = {name: value for name, value in self if isinstance(value, timedelta)}
        return {**self.model_dump(mode="json"), **{name: format_duration(value) for name, value in shown.items()}}
