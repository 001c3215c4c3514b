"""What became of messages in quarantine, by Postal's rows as they are now."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mailslice.duties.stuck_mails_postal.quarantine import queue_row
from mailslice.duties.stuck_mails_postal.rules import ANSWERS, is_answered
from mailslice.duties.stuck_mails_postal.survey import messages_of
from mailslice.model.errors import BadInput, MailsliceError, StoreUnavailable
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry
from mailslice.stores.postal.databases import PostalDatabases
from mailslice.stores.postal.messages import PostalDelivery, PostalMessage
from mailslice.stores.postal.rows import PostalQueue, QueuedMessage

_UNPROVED = (
    "Postal's message of this id has no record of this closing, so it may be another one: released "
    "only with --accept-duplicates, discarded only by its ids"
)


class QuarantineState(StrEnum):
    """As `postal quarantine list` says it."""

    KEPT = "kept"
    FINISHED = "finished"
    """Postal wrote a record after ours, or an answer since the lock: its worker lived after all,
    somebody released it or cancelled the hold, or a bounce says that it had been sent.
    """
    REQUEUED = "requeued"
    """Postal's queue has it: somebody requeued it in Postal's web interface."""
    UNKNOWN = "unknown"
    """Postal cannot be asked, or has no record of ours: its message of this id may be another."""


@dataclass(frozen=True, slots=True)
class QuarantinedMessage:
    """An entry, and what Postal says of its message.

    `message` is None if Postal no longer has it, or cannot be asked; `why` explains UNKNOWN.
    `queued` is the id of its row in Postal's queue, `newest` that of its newest delivery record,
    `newest_answer` that of the newest record by which a worker ended it. `is_held`: our record is
    the newest, and Postal holds it by that. `is_proved`: our record, or the unchanged queue row,
    proves that it is the message of the entry.
    """

    entry: PostalEntry
    state: QuarantineState
    message: PostalMessage | None = None
    has_content: bool = False
    queued: int | None = None
    newest: int = 0
    newest_answer: int = 0
    is_held: bool = False
    is_proved: bool = False
    why: str = ""


def in_quarantine(entries: Iterable[PostalEntry]) -> list[PostalEntry]:
    """The entries without NOTED ones: their messages are not set aside yet."""
    return [entry for entry in entries if entry.state is not EntryState.NOTED]


def look_up(postal: PostalDatabases, entries: Collection[PostalEntry]) -> list[QuarantinedMessage]:
    """The states, in order; UNKNOWN for a silent server. Raises for a silent main database."""
    by_server: defaultdict[int, list[PostalEntry]] = defaultdict(list)
    for entry in entries:
        by_server[entry.server].append(entry)
    by_ids: dict[tuple[int, int], QuarantinedMessage] = {}
    for server, of_server in by_server.items():
        try:
            looked_up = _of_server(postal, server, of_server)
        except BadInput:
            raise
        except MailsliceError as error:
            if isinstance(error, StoreUnavailable):
                postal.main.rows("SELECT 1")  # raises where it is the main MariaDB
            why = f"Postal cannot be asked: {error}"
            looked_up = [
                QuarantinedMessage(entry, QuarantineState.UNKNOWN, why=why) for entry in of_server
            ]
        by_ids |= {(item.entry.server, item.entry.message): item for item in looked_up}
    return [by_ids[entry.server, entry.message] for entry in entries]


def _of_server(
    postal: PostalDatabases, server: int, entries: Sequence[PostalEntry]
) -> list[QuarantinedMessage]:
    ids = [entry.message for entry in entries]
    queued = PostalQueue(postal.main).of_messages(server, ids)
    if (messages := messages_of(postal, server)) is None:
        return [_of_entry(entry, None, (), queued, {}) for entry in entries]
    rows, records = messages.by_id(ids), messages.deliveries(ids)
    contents = messages.has_own_header(rows.values())
    return [
        _of_entry(entry, rows.get(entry.message), records.get(entry.message, ()), queued, contents)
        for entry in entries
    ]


def _of_entry(
    entry: PostalEntry,
    message: PostalMessage | None,
    records: Sequence[PostalDelivery],
    queued: Mapping[int, QueuedMessage],
    contents: Mapping[int, bool],
) -> QuarantinedMessage:
    own = [record.id for record in records if record.log_id == entry.log_id]
    after = {record.status for record in records if own and record.id > own[-1]}
    by_postal = [record for record in records if not record.is_own]
    was, row = queue_row(entry), queued.get(entry.message)
    is_proved = bool(own) or (row is not None and (row.id, row.lock) == (was.id, was.lock))
    state, why = QuarantineState.KEPT, ""
    if message is not None and not is_proved:
        state, why = QuarantineState.UNKNOWN, _UNPROVED
    elif row is not None:
        state = QuarantineState.REQUEUED
    # A worker may have written its record between our survey and our own record.
    elif after & {*ANSWERS, "Bounced", "HoldCancelled"} or is_answered(was, by_postal):
        state = QuarantineState.FINISHED
    return QuarantinedMessage(
        entry,
        state,
        message,
        has_content=entry.message in contents,
        queued=None if row is None else row.id,
        newest=records[-1].id if records else 0,
        newest_answer=max((record.id for record in records if record.status in ANSWERS), default=0),
        is_held=bool(records) and records[-1].log_id == entry.log_id,
        is_proved=is_proved,
        why=why,
    )
