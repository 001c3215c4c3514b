"""Parameters of a dead_letters run."""

from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from mailslice.codec.addresses import NULL_SENDER, checked_sender
from mailslice.maintenance.params import DutyParams
from mailslice.model.dead_letters import MAX_CHECKED_OUT, Cause
from mailslice.model.errors import BadInput
from mailslice.model.settings import Duration


class Params(DutyParams):
    """Params of dead_letters."""

    LATER: ClassVar[tuple[str, ...]] = ("limit", "most_redrives", "force_cleaned", "rate")

    redrive: bool = Field(False, description="put letters back into the queue; otherwise none")
    limit: int = Field(
        1000,
        ge=1,
        le=MAX_CHECKED_OUT,
        description="most letters that one run redrives, the oldest first",
    )
    cause: Cause | None = Field(None, description="redrive only letters with this cause")
    name: str | None = Field(None, description="redrive only mails of this name")
    sender: str | None = Field(
        None, description="redrive only mails of this sender; <> is the null sender"
    )
    older_than: Duration | None = Field(
        None,
        description="redrive only letters that died at least this long ago (15m, 1d); "
        "never letters of unknown age",
    )
    most_redrives: int = Field(
        3, ge=1, le=1000, description="a mail that was redriven this often stays a dead letter"
    )
    force_cleaned: bool = Field(
        False,
        description="also redrive mails that have neither a row nor a deleted mark: "
        "they were completed or deleted before, and are handled again",
    )
    rate: int = Field(
        0, ge=0, description="most letters redriven a second; 0 = only the setting limits them"
    )
    look_at: int = Field(
        100_000,
        ge=1,
        le=MAX_CHECKED_OUT,
        description="letters that one run takes from the head of the queue; "
        "each costs the broker 5 KB meanwhile",
    )

    @field_validator("cause", mode="before")
    @classmethod
    def _as_people_write_it(cls, value: object) -> object:
        """Also accepts spellings such as `missing-blob` and `Rejected`."""
        if not isinstance(value, str):
            return value
        spellings = {one.casefold().partition(" by ")[0]: one for one in Cause}
        spellings |= {one.casefold(): one for one in Cause}
        words = value.replace("-", " ").replace("_", " ").casefold().split()
        return spellings.get(" ".join(words), value)

    @field_validator("sender")
    @classmethod
    def _an_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            return checked_sender(value, "sender") or NULL_SENDER
        except BadInput as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _filters_are_of_a_redrive(self) -> Self:
        fields = ("cause", "name", "sender", "older_than", "force_cleaned")
        filters = [field for field in fields if getattr(self, field)]
        if filters and not self.redrive:
            raise ValueError(
                f"{', '.join(filters)} narrow or widen a redrive: give redrive, too "
                "(a dry run shows what it would do)"
            )
        if self.cause is Cause.BAD_JSON:
            raise ValueError("what is no mail cannot be redriven: it is exported")
        return self
