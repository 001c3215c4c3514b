"""What a run of reclaim can be told."""

from datetime import timedelta
from typing import ClassVar

from pydantic import Field

from mailslice.maintenance.params import DutyParams
from mailslice.model.setting_types import Time


class Params(DutyParams):
    """Params of reclaim."""

    OVERRIDES: ClassVar[tuple[str, ...]] = ("unrepaired",)
    LATER: ClassVar[tuple[str, ...]] = ("max_pending", "node_timeout")

    force: bool = Field(False, description="also nodes of which nothing is known to wait")
    least: int = Field(
        0, ge=0, le=10**9, description="MiB that must wait on a node before it is begun"
    )
    max_pending: int = Field(
        20,
        ge=0,
        description="compactions that run or wait on a node: with more of them no node is begun",
    )
    node_timeout: Time = Field(
        timedelta(hours=4),
        description="of one command on one node; a command that takes longer ends the run",
    )
    unrepaired: bool = Field(
        False,
        description="also when no repair of the tables within gc_grace is known; needs a reason",
    )
