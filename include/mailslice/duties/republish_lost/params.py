"""Parameters of a republish_lost run."""

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
        description="only mails enqueued at least this long ago, as James' olderThan (1d, 5h); all "
        "when not given",
    )
    accept_duplicates: bool = Field(
        False,
        description="also mails with the verdict `lost or ghost`: those that James delivered "
        "without a mark are delivered again",
    )
    repeat_unknown: bool = Field(
        False,
        description="also mails whose earlier publish got no confirm: they may be delivered twice",
    )
