"""Parameters of a queue_audit run."""

from pydantic import Field

from mailslice.maintenance.slice_range import SlicedParams
from mailslice.model.settings import Duration


class Params(SlicedParams):
    """Params of queue_audit."""

    older_than: Duration | None = Field(
        None,
        description="only mails enqueued at least this long ago (90s, 15m, 1h); two slice windows "
        "when not given",
    )
    census: bool = Field(
        False,
        description="take the ready messages of the work queue for 15 to 45 s (up to 195 s where "
        "workers write their record more rarely than every 10 s), read their ids, return them. "
        "Workers get none meanwhile, and each is marked redelivered. Only a census proves a mail "
        "lost",
    )
