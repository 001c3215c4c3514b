"""What a person decides about mails that stuck_mails set aside, kept as a duty's decisions are."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from mailslice.model.mail import EnqueueId, QueueName

if TYPE_CHECKING:
    from mailslice.stores import Stores
    from mailslice.stores.cassandra.own import QuarantinedMail


def record_decision(
    stores: Stores,
    queue: QueueName,
    mail: QuarantinedMail,
    *,
    released_as: EnqueueId | None,
    why: str,
    who: str,
    now: datetime,
) -> None:
    """The row of one mail. `released_as` None: it was discarded."""
    from mailslice.stores.cassandra.own import DecisionRow
    from mailslice.stores.cassandra.own.decisions import BY_A_PERSON

    row = DecisionRow(
        mail.enqueue_id,
        mail.name,
        mail.stage,
        mail.worker,
        mail.age,
        verdict=BY_A_PERSON,
        action="released" if released_as else "discarded",
        why=why + (f"; it is {released_as} now" if released_as else ""),
        decided=now,
        who=who,
        attempt=mail.attempt,
    )
    stores.own.decisions.save(queue, row, stores.settings.duty.retention)
