"""Parameters of a queue_cleanup run."""

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from mailslice.maintenance.slice_range import Moment, SlicedParams
from mailslice.model.setting_types import Duration, Share


class Params(SlicedParams):
    """Params of queue_cleanup."""

    OVERRIDES: ClassVar[tuple[str, ...]] = ("unusual",)
    LATER: ClassVar[tuple[str, ...]] = ("max_share", "rate")
    WEEKLY: ClassVar[Mapping[str, object]] = {"sweep": True}

    grace: Duration | None = Field(
        None,
        description="time after its end before a slice counts as closed (90s, 15m, 1h); "
        "MAILSLICE_DUTY_GRACE when not given. Give at least a quarter of that setting: the clocks "
        "of machines that enqueue may be behind by as much",
    )
    max_share: Share = Field(0.0, description="has no effect any more; see unusual")
    unusual: bool = Field(
        False,
        description="also when the plan has far more rows than the last runs deleted "
        "(MAILSLICE_DUTY_USUAL_FACTOR); needs a reason",
    )
    restarted: Moment | None = Field(
        None,
        description="when the last node of James or worker of mailslice was restarted with the "
        "current slice window, ISO 8601; slices then close by this window and no longer by the "
        "largest one ever used",
    )
    sweep: bool = Field(
        False,
        description="also list marks without a row, and rows before contentStart (queue of "
        "mailslice alone: unmarked rows before browseStart); scans whole tables: run it weekly",
    )
    aside: bool = Field(
        False,
        description="with sweep: quarantine unmarked rows before contentStart (queue of mailslice "
        "alone: before browseStart), for `mailslice stuck release` or `discard`",
    )
    rate: int = Field(
        0, ge=0, description="partitions deleted and marks dropped a second, at most; 0 = no limit"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.sweep and self.ranged:
            raise ValueError("sweep looks at everything: it goes with no range of slices")
        if self.aside and not self.sweep:
            raise ValueError("aside goes with sweep, which finds the rows")
        return self
