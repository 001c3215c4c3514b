"""Parameters of a stuck_mails_postal run."""

from pydantic import Field

from mailslice.maintenance.params import DutyParams
from mailslice.maintenance.slice_range import Moment
from mailslice.model.setting_types import Time
from mailslice.model.settings import PostalMode


class Params(DutyParams):
    """Params of stuck_mails_postal."""

    mode: PostalMode | None = Field(
        None,
        description="shadow: write down what would be done; close: quarantine, and Held in Postal; "
        "retry: back to the queue where nothing was sent and the holder is dead. "
        "MAILSLICE_POSTAL_MODE when not given",
    )
    lock_timeout: Time | None = Field(
        None,
        description="a message locked for longer is stuck. MAILSLICE_POSTAL_LOCK_TIMEOUT when not "
        "given, else 10 times the p99 of the sending times, at least 10m",
    )
    limit: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="most messages that one run acts on, oldest locks first; the next run acts on "
        "the rest",
    )
    restarted: Moment | None = Field(
        None,
        description="mode retry: since when every worker of Postal runs, ISO 8601; holders of "
        "earlier locks are dead",
    )
    accept_duplicates: bool = Field(
        False,
        description="mode retry: also put back messages that may have been sent, or that a worker "
        "may still hold",
    )
