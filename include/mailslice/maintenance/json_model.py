"""Frozen models that are JSON in plans and reports."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class JsonModel(BaseModel):
    """Camel-case names, ISO 8601 times, timedeltas in seconds. Unknown fields are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        ser_json_timedelta="float",
    )

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return self.model_dump(mode="json", by_alias=True)
