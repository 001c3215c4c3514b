"""What a run of republish_lost can be told."""

from typing import ClassVar

from pydantic import Field

from mailslice.maintenance.params import DutyParams
from mailslice.model.settings import Duration


class Params(DutyParams):
    """Params of republish_lost."""

    LATER: ClassVar[tuple[str, ...]] = ("older_than", "accept_duplicates", "repeat_unknown")

    audit: str | None = Field(
        None,
        description="run of the audit whose lost mails are published; when not given, the newest "
        "one that took a census",
    )
    older_than: Duration | None = Field(
        None,
        description="only mails enqueued at least so long ago, as James' olderThan (1d, 5h); all "
        "when not given",
    )
    accept_duplicates: bool = Field(
        False,
        description="also mails that are `lost or ghost`: one that James delivered without marking "
        "it is delivered again",
    )
    repeat_unknown: bool = Field(
        False,
        description="also mails that were published once without anybody seeing a confirm: they "
        "may be delivered twice",
    )
