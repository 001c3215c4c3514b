"""What a run of queue_audit can be told."""

from pydantic import Field

from mailslice.maintenance.slice_range import SlicedParams
from mailslice.model.settings import Duration


class Params(SlicedParams):
    """Params of queue_audit."""

    older_than: Duration | None = Field(
        None,
        description="only mails enqueued at least so long ago (90s, 15m, 1h); two slice windows "
        "when not given",
    )
    census: bool = Field(
        False,
        description="hold the ready messages of the work queue for 15 to 45 s (to 195 s where "
        "workers write their record more rarely than every 10 s) to see "
        "whose they are, and give all back: workers get none meanwhile, and each is marked "
        "redelivered; what is in no queue is proved lost by this alone",
    )
