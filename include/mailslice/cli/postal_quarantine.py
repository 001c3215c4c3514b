"""`mailslice postal quarantine`: lists, releases, discards and exports quarantined messages."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mailslice.cli.arguments import Folder, Reason, Yes, count, option
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.postal import app as postal_app
from mailslice.cli.queue_session import confirm, may_ask, open_stores, record, who
from mailslice.codec.shown import shown
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput, SomeFailed
from mailslice.stores import Stores

if TYPE_CHECKING:
    from mailslice.duties.stuck_mails_postal.quarantined import QuarantinedMessage
    from mailslice.stores.own.postal_quarantine import PostalEntry

app = group("Messages of a Postal that were set aside: list, release, discard, export.")
postal_app.add_typer(app, name="quarantine")
__all__ = ["app", "postal_app"]

Server = Annotated[
    int | None, option("--server N", "Postal's id of the mail server.", partial(count, minimum=0))
]
Message = Annotated[
    int | None,
    option("--message ID", "Postal's id of the message in that server.", partial(count, minimum=0)),
]
Kept = Annotated[bool, option("--all", "Every message in quarantine that is kept.")]
All = Annotated[bool, option("--all", "Every message in quarantine, kept or not.")]
AcceptDuplicates = Annotated[
    bool,
    option(
        "--accept-duplicates",
        "Also a message for which a worker of Postal wrote a record since it was closed, and one "
        "that has no record of its closing.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """The options of a release and of a discard."""

    server: Server = None
    message: Message = None
    yes: Yes = False
    reason: Reason = None


_COLUMNS = (
    *("server", "message", "state", "stage", "rcptTo", "mailFrom", "bytes", "closedAt"),
    *("lockedBy", "lockedAt", "reason"),
)


@command(app, "list")
def list_(out: Output) -> None:
    """Messages that wait for a person, and what Postal says of each now."""
    from mailslice.duties.stuck_mails_postal.identity import require_same
    from mailslice.duties.stuck_mails_postal.quarantined import look_up

    with open_stores() as stores:
        entries = _entries(stores)
        require_same(stores)
        messages = look_up(stores.postal, entries)
        for why in dict.fromkeys(message.why for message in messages if message.why):
            out.note(why)
        out.rows(map(_as_row, messages), _COLUMNS, empty="no message of Postal is in quarantine")


@command(app, "release")
def release(
    out: Output,
    *,
    every: Kept = False,
    accept_duplicates: AcceptDuplicates = False,
    options: MessageOptions,
) -> None:
    """Put messages back into Postal's queue, each once. A line a message.

    With --all, those that are not kept are passed over. It fails where Postal cannot be asked. At
    a terminal it asks first.
    """
    question = "Put {} messages back into Postal's queue?"
    _act(out, "release", question, options, every=every, accept=accept_duplicates)


@command(app, "discard")
def discard(out: Output, *, every: All = False, options: MessageOptions) -> None:
    """Remove messages from the quarantine for good; Postal's hold of them is cancelled.

    At a terminal it asks first. A message whose hold in Postal is not mailslice's any more stays as
    it is there. It fails where Postal cannot be asked: then do it again.
    """
    question = "Remove {} messages from the quarantine for good?"
    # A message that is named is discarded, whatever its state in Postal.
    _act(out, "discard", question, options, every=every, accept=not every)


@command(app, "export")
def export(out: Output, folder: Folder, *, server: Server = None, message: Message = None) -> None:
    """Write contents as SERVER-MESSAGE.eml, byte for byte as they were closed. They stay."""
    from mailslice.cli.eml_export import prepare
    from mailslice.duties.stuck_mails_postal.quarantine import copy_file
    from mailslice.maintenance.artifacts import artifacts

    if (server is None) != (message is None):
        raise BadInput("postal quarantine export: give --server and --message together, or neither")
    prepare(folder)
    failures: list[str] = []
    with open_stores() as stores:
        files = artifacts(stores.settings)

        def lines() -> Iterator[dict[str, object]]:
            for entry in _chosen(stores, "export", server, message):
                line = _exported(files.read(copy_file(entry.copy_id)), entry, folder)
                if line["error"]:
                    failures.append(str(line["error"]))
                yield line

        total = out.rows(
            lines(),
            ("server", "message", "path", "bytes", "error"),
            empty="no message of Postal is in quarantine",
        )
    if failures:
        raise SomeFailed(f"{len(failures)} of {total} messages were not exported: {failures[0]}")


def _exported(content: bytes | None, entry: "PostalEntry", folder: Path) -> dict[str, object]:
    from mailslice.cli.eml_export import Digested, FileConflictError, keep_file

    path = folder / f"{entry.server}-{entry.message}.eml"
    error = None
    if content is None or hashlib.sha256(content).hexdigest() != entry.sha256:
        error = "its copy is missing or damaged in the artifacts location"
    else:
        try:
            keep_file(path, Digested(iter([content])))
        except FileConflictError as taken:
            error = str(taken)
    return {
        "server": entry.server,
        "message": entry.message,
        "path": str(path) if error is None else None,
        "bytes": entry.size,
        "sha256": entry.sha256,
        "error": error,
    }


def _act(
    out: Output, doing: str, question: str, options: MessageOptions, *, every: bool, accept: bool
) -> None:
    """Acts on one message after the other. Raises SomeFailed for refused messages; with `--all`
    only for those about which Postal did not answer, as it passes over the others.
    """
    from mailslice.duties.stuck_mails_postal.releases import (
        NotReleased,
        PostalSilent,
        ReleaseRequest,
        open_releases,
    )

    server, message = options.server, options.message
    if (server is None) != every or (message is None) != every:
        raise BadInput(f"postal quarantine {doing}: give either --server N --message ID, or --all")
    failed: list[str] = []
    with open_stores() as stores:
        entries = _chosen(stores, doing, server, message)
        if not entries:
            out.note("no message of Postal is in quarantine")
            return
        if may_ask(options.yes):
            confirm(question.format(_acted_on(stores, doing, entries, accept) if every else 1))
        request = ReleaseRequest(who(), options.reason or "", accept)
        with open_releases(stores, system_clock, request) as releases:
            for entry in entries:
                ids: dict[str, object] = {"server": entry.server, "message": entry.message}
                outcome: dict[str, object]
                try:
                    if doing == "release":
                        outcome = {"result": "released", "queuedMessage": releases.release(entry)}
                    else:
                        releases.discard(entry)
                        outcome = {"result": "discarded"}
                except NotReleased as error:
                    outcome = {"result": "refused", "why": str(error)}
                    if not every or isinstance(error, PostalSilent):
                        failed.append(str(error))
                else:
                    record(stores.settings, f"postal {doing}", None, options.reason, **ids)
                out.line(ids | outcome, _sentence(ids | outcome))
    if failed:
        summary = f"{len(failed)} of {len(entries)} messages, such as: " if every else ""
        raise SomeFailed(f"postal quarantine {doing}: {summary}{failed[0]}")


def _acted_on(stores: Stores, doing: str, entries: "list[PostalEntry]", accept: bool) -> int:
    """The number of messages that `--all` acts on. A release passes over those that are not kept,
    or have no content, a discard over those about which Postal does not answer.
    """
    from mailslice.duties.stuck_mails_postal.quarantined import QuarantineState, look_up

    messages = look_up(stores.postal, entries)
    if doing == "discard":
        return sum(one.state is not QuarantineState.UNKNOWN for one in messages)
    return sum(
        one.has_content and one.queued is None and (accept or one.state is QuarantineState.KEPT)
        for one in messages
    )


def _sentence(line: dict[str, object]) -> str:
    words = [str(line["result"]), f"message {line['message']} of server {line['server']}"]
    if line.get("queuedMessage") is not None:
        words.append(f"as queue row {line['queuedMessage']}")
    if line.get("why"):
        words.append(shown(str(line["why"])))
    return ": ".join([" ".join(words[:2]), *words[2:]])


def _entries(stores: Stores) -> "list[PostalEntry]":
    """Everything in quarantine. Creates no table."""
    from mailslice.duties.stuck_mails_postal.identity import existing_entries
    from mailslice.duties.stuck_mails_postal.quarantined import in_quarantine

    _ = stores.postal  # names the setting that is missing
    return in_quarantine(existing_entries(stores))


def _chosen(
    stores: Stores, doing: str, server: int | None, message: int | None
) -> "list[PostalEntry]":
    entries = _entries(stores)
    if server is None:
        return entries
    chosen = [entry for entry in entries if (entry.server, entry.message) == (server, message)]
    if not chosen:
        raise BadInput(
            f"postal quarantine {doing}: message {message} of server {server} is not in "
            "quarantine; allowed are those that 'mailslice postal quarantine list' shows"
        )
    return chosen


def _as_row(message: "QuarantinedMessage") -> dict[str, Any]:
    entry = message.entry
    return {
        "server": entry.server,
        "message": entry.message,
        "queuedMessage": entry.queued_message,
        "rcptTo": entry.rcpt_to,
        "mailFrom": entry.mail_from,
        "domain": entry.domain,
        "bytes": entry.size,
        "sha256": entry.sha256,
        "lockedBy": entry.locked_by,
        "lockedAt": f"{entry.locked_at}Z" if entry.locked_at else None,
        "stage": entry.stage,
        "closedAt": entry.closed_at,
        "run": entry.run,
        "reason": entry.reason,
        "state": message.state,
    }
