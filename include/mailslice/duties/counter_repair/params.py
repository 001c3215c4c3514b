"""Parameters of a counter_repair run."""

from datetime import timedelta
from typing import Annotated, ClassVar, Self
from uuid import UUID

from pydantic import BeforeValidator, Field, model_validator

from mailslice.maintenance.params import DutyParams, Unusual
from mailslice.model.setting_types import Share, Time


def _words(value: object) -> object:
    """Names without duplicates, from comma-separated text or a list of such texts.

    A form sends empty text for a field that the user left empty.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    words = tuple(
        dict.fromkeys(
            word.strip() for text in texts for word in str(text).split(",") if word.strip()
        )
    )
    if not words and any(str(text).strip() for text in texts):
        raise ValueError(
            "it names nothing; allowed are names with commas between them, or nothing at all for "
            "all mailboxes"
        )
    return words


def _ids(value: object) -> object:
    words = _words(value)
    if isinstance(words, tuple):
        for word in words:
            try:
                UUID(word)
            except ValueError:
                raise ValueError(
                    f"{word!r} is not the id of a mailbox: allowed are UUIDs, such as "
                    "5f1c0e50-c6f9-11f0-8de9-0242ac120002"
                ) from None
        return tuple(dict.fromkeys(str(UUID(word)) for word in words))
    return words


class Params(DutyParams):
    """Params of counter_repair."""

    OVERRIDES: ClassVar[tuple[str, ...]] = ("unusual",)
    LATER: ClassVar[tuple[str, ...]] = ("max_share",)

    settle: Time = Field(
        timedelta(minutes=5),
        description="time between the two reads of a mailbox that must agree; only mailboxes with "
        "wrong counters are read again",
    )
    mailboxes: Annotated[tuple[str, ...], BeforeValidator(_ids)] = Field(
        (), description="ids of the mailboxes to look at, comma-separated; none = all"
    )
    users: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        (), description="only mailboxes of these users, comma-separated; none = all"
    )
    trust_projection: bool = Field(
        False,
        description="count messageIdTable and do not read imapUidTable: cheaper, but differences "
        "between the two stay undetected",
    )
    repair_projection: bool = Field(
        False,
        description="also rewrite rows of messageIdTable that differ from imapUidTable, those that "
        "the plan lists",
    )

    unusual: Unusual = False
    max_share: Share | None = Field(
        None,
        description="share of all mailboxes that one run may correct, and of the rows of "
        "messageIdTable that it may delete; more fails the gate, unless mailboxes or users are "
        "named. MAILSLICE_DUTY_MAX_COUNTERS_SHARE when not given",
    )

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.trust_projection and self.repair_projection:
            raise ValueError(
                "trust_projection reads no truth to repair the projection from: only one of the "
                "two goes"
            )
        return self
