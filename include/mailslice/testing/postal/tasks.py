"""Actions of Postal besides its workers: the tidy task, and buttons of a message's page."""

from __future__ import annotations

from datetime import UTC, timedelta

from mailslice.testing.postal.databases import FreshPostal
from mailslice.testing.postal.mails import OUTGOING
from mailslice.testing.postal.statements import destroy, utc_now

_TIDY_PAGE = 1000


def tidy(postal: FreshPostal, stale: timedelta = timedelta(days=1)) -> int:
    """Postal's hourly task: deletes rows whose lock is older than `stale`. Returns how many."""
    limit, last, number = utc_now() - stale, 0, 0
    while True:
        page = postal.main.rows(
            "SELECT id FROM queued_messages WHERE locked_at IS NOT NULL AND locked_at < %s "
            f"AND id > %s ORDER BY id LIMIT {_TIDY_PAGE}",
            *(limit, last),
        )
        for row in page:
            destroy(postal.main, row["id"])
        number += len(page)
        if len(page) < _TIDY_PAGE:
            return number
        last = page[-1]["id"]


def press_release(postal: FreshPostal, server: int, message: int) -> int:
    """The button Release message, or Redeliver. Returns the id of the message's queue row.

    If there is a queue row already, only its retry_after is cleared.
    """
    queued = postal.main.one(
        "SELECT id FROM queued_messages WHERE message_id = %s AND server_id = %s LIMIT 1",
        *(message, server),
    )
    if queued:
        postal.main.run("UPDATE queued_messages SET retry_after = NULL WHERE id = %s", queued)
        return int(queued)
    (row,) = postal.servers[server].session.rows(
        "SELECT rcpt_to, scope, route_id, endpoint_id FROM messages WHERE id = %s", message
    )
    domain, now = str(row["rcpt_to"]).rpartition("@")[2], postal.now()
    incoming = f"incoming-rt:{row['route_id']}-ep:{row['endpoint_id']}"
    return postal.main.insert(
        "queued_messages",
        server_id=server,
        message_id=message,
        domain=domain,
        created_at=now,
        updated_at=now,
        route_id=row["route_id"],
        manual=1,
        batch_key=f"outgoing-{domain}" if row["scope"] == OUTGOING else incoming,
    )


def press_cancel_hold(postal: FreshPostal, server: int, message: int) -> None:
    """The button Cancel hold. Does nothing if the message is not held."""
    session = postal.servers[server].session
    if session.one("SELECT status FROM messages WHERE id = %s", message) != "Held":
        return
    stamp = postal.now().replace(tzinfo=UTC).timestamp()
    session.insert("deliveries", message_id=message, status="HoldCancelled", timestamp=stamp)
    session.run(
        "UPDATE messages SET status = 'HoldCancelled', last_delivery_attempt = %s, held = 0, "
        "hold_expiry = NULL WHERE id = %s",
        *(stamp, message),
    )
