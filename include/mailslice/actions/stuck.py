"""What a person decides about mails that stuck_mails set aside, kept as a duty's decisions are."""

from __future__ import annotations

from mailslice.admin.quarantine import Quarantine
from mailslice.model.clock import Clock
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DecisionRow, QuarantinedMail
from mailslice.stores.cassandra.own.decisions import BY_A_PERSON


def decide(
    stores: Stores,
    queue: QueueName,
    quarantine: Quarantine,
    mail: QuarantinedMail,
    clock: Clock,
    *,
    discards: bool,
    why: str,
    who: str,
) -> EnqueueId | bool:
    """Release or discard the mail, and keep that. Its new id; of a discard, whether it was there.

    Raises as `Quarantine.release` and `Quarantine.discard`.
    """
    released_as = None if discards else quarantine.release(mail)
    if discards and not quarantine.discard(mail):
        return False
    row = DecisionRow(
        mail.enqueue_id,
        mail.name,
        mail.stage,
        mail.worker,
        mail.age,
        verdict=BY_A_PERSON,
        action="released" if released_as else "discarded",
        why=why + (f"; it is {released_as} now" if released_as else ""),
        decided=clock(),
        who=who,
        attempt=mail.attempt,
    )
    stores.own.decisions.save(queue, row, stores.settings.duty.retention)
    return released_as or True
