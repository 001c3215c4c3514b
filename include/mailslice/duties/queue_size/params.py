"""Parameters of a queue_size run."""

from pydantic import Field

from mailslice.maintenance.params import DutyParams


class Params(DutyParams):
    """Params of queue_size."""

    domains: int = Field(
        20,
        ge=1,
        le=1000,
        description="recipient domains in the histogram, the busiest first; "
        "the rest is summed up as (others)",
    )
    sample: bool = Field(
        True,
        description="take a sample of the broker, and a second one 15 s later if it was empty; "
        "the pair lets a cleanup drop deleted marks",
    )
