"""Parameters of a stuck_mails run."""

from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import Field

from mailslice.maintenance.params import DutyParams
from mailslice.model.setting_types import Duration, at_least
from mailslice.model.settings import StuckMode


class Params(DutyParams):
    """Params of stuck_mails."""

    LATER: ClassVar[tuple[str, ...]] = ("most",)

    lock_timeout: Annotated[Duration, at_least(timedelta(seconds=1))] | None = Field(
        None,
        description="a mail held for longer is stuck; 10 times the queue's p99 and at least 10m "
        "when not given (MAILSLICE_DUTY_STUCK_*)",
    )
    mode: StuckMode | None = Field(
        None,
        description="shadow: write down what would be done; close: quarantine and mark; recover: "
        "by stage marks. MAILSLICE_DUTY_STUCK_MODE when not given",
    )
    most: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="decisions that one run may take; with more the gate refuses the plan",
    )
