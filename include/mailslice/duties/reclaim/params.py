"""Parameters of a reclaim run."""

from datetime import timedelta
from typing import ClassVar

from pydantic import Field

from mailslice.maintenance.params import DutyParams
from mailslice.model.setting_types import Time


class Params(DutyParams):
    """Params of reclaim."""

    OVERRIDES: ClassVar[tuple[str, ...]] = ("unrepaired",)
    LATER: ClassVar[tuple[str, ...]] = ("max_pending", "node_timeout")

    force: bool = Field(False, description="also nodes without known deleted data")
    least: int = Field(
        0, ge=0, le=10**9, description="least MiB of deleted data for a node to be reclaimed"
    )
    max_pending: int = Field(
        20,
        ge=0,
        description="most compactions that run or wait on a node; the run ends at a node with more",
    )
    node_timeout: Time = Field(
        timedelta(hours=4),
        description="time-out of a command on a node; a command that takes longer ends the run",
    )
    unrepaired: bool = Field(
        False,
        description="also if no repair of the tables within gc_grace is known; needs a reason",
    )
