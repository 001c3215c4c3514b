"""Texts about a decision for Postal's operators, and its record in mailslice's tables."""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from mailslice.codec.shown import shown
from mailslice.duties.stuck_mails_postal.quarantine import queue_row
from mailslice.duties.stuck_mails_postal.rules import PostalStage
from mailslice.model.durations import format_duration
from mailslice.stores import Stores
from mailslice.stores.own.postal_decisions import PostalDecision
from mailslice.stores.own.postal_quarantine import PostalEntry
from mailslice.stores.postal.rows import QueuedMessage

log = logging.getLogger(__name__)

LEFT_ALONE = "left alone"
_HOLDER = 60
_SENT = {
    PostalStage.BEFORE_SENDING: "It may have been sent only if that worker lives.",
    PostalStage.MAYBE_SENT: "It may have been sent.",
    PostalStage.DEFERRED: "Its last try was deferred; it may have been sent.",
}


def held_details(entry: PostalEntry) -> str:
    """Why a message is held. Postal may cut the end off, so the most important comes first."""
    why = f" {entry.reason}" if entry.reason else ""
    return (
        f"{_SENT.get(PostalStage(entry.stage), '')} Its worker died or hangs: locked since "
        f"{entry.locked_at.replace('T', ' ')} UTC by {shown(entry.locked_by)[:_HOLDER]}. "
        f"Set aside by mailslice ({entry.who}), a person decides.{why}"
    )


def error_details(
    row: QueuedMessage, stage: PostalStage | None, who: str, reason: str, *, is_dead: bool
) -> str:
    """Why a lock was given up. `is_dead`: a person said that the lock's worker is dead."""
    sent = "It was not sent." if is_dead else _SENT[PostalStage.BEFORE_SENDING]
    if stage is PostalStage.MAYBE_SENT:
        sent = _SENT[stage]
    why = f" {reason}" if reason else ""
    holder = "Its worker is gone" if is_dead else "Its worker may live, duplicates are accepted"
    return (
        f"{holder}: locked since {row.locked_at} UTC by {shown(row.locked_by or '')[:_HOLDER]}. "
        f"{sent} It will be retried automatically (mailslice, {who}).{why}"
    )


@dataclass(frozen=True, slots=True)
class PostalDecisionLog:
    """Saves decisions of `who` about messages as rows and log lines, both without addresses."""

    stores: Stores
    who: str
    run: str

    def save_entry(
        self, entry: PostalEntry, action: str, verdict: str, why: str, decided: datetime
    ) -> None:
        """Save a decision about a message in quarantine, with the queue row that it had."""
        row, age = queue_row(entry), None
        if row.locked_at is not None:
            age = max(decided.replace(tzinfo=None) - row.locked_at, timedelta())
        self.save(
            row,
            action=action,
            verdict=verdict,
            stage=PostalStage(entry.stage),
            age=age,
            why=why,
            log_id=entry.log_id,
            decided=decided,
        )

    def save(
        self,
        row: QueuedMessage,
        *,
        action: str,
        verdict: str,
        stage: PostalStage | None,
        age: timedelta | None,
        why: str,
        log_id: str,
        decided: datetime,
    ) -> None:
        """Save a decision. Twice with the same `decided`, `log_id` and `action` makes one row."""
        decision = PostalDecision(
            server=row.server,
            message=row.message,
            queued_message=row.id,
            holder=row.locked_by or "",
            age=age or timedelta(),
            stage="" if stage is None else stage.value,
            verdict=str(verdict),
            action=str(action),
            why=why,
            decided=decided,
            log_id=log_id,
            who=self.who,
            run=self.run,
        )
        retention = self.stores.settings.duty.retention
        self.stores.records.postal_decisions.save(decision, retention)
        locked = "not locked"
        if age is not None:
            locked = f"locked for {format_duration(timedelta(seconds=age // timedelta(seconds=1)))}"
        log.info(
            "%s: message %d of server %d (queue row %d, %s, stage %s, %s): %s [%s]",
            *(decision.action, row.message, row.server, row.id),
            *(decision.verdict, decision.stage or "none", locked, why, log_id),
        )
