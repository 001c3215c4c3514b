"""`mailslice postal quarantine`: messages that were set aside, and their ways out."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mailslice.cli.arguments import Folder, Reason, Yes, count, option
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.postal import app as postal_app
from mailslice.cli.queue_session import confirm, open_stores, record, who
from mailslice.codec.shown import shown
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput, MailsliceError, SomeFailed

if TYPE_CHECKING:
    from mailslice.duties.stuck_mails_postal.quarantined import QuarantinedMessage
    from mailslice.duties.stuck_mails_postal.releases import PostalReleases
    from mailslice.stores import Stores
    from mailslice.stores.own.postal_quarantine import PostalEntry

app = group("Messages of a Postal that were set aside: list, release, discard, export.")
postal_app.add_typer(app, name="quarantine")
__all__ = ["app", "postal_app"]

Server = Annotated[
    int | None, option("--server N", "Postal's id of the mail server.", partial(count, least=0))
]
Message = Annotated[
    int | None,
    option("--message ID", "Postal's id of the message in that server.", partial(count, least=0)),
]
Kept = Annotated[bool, typer.Option("--all", help="Every message in quarantine that is kept.")]
All = Annotated[bool, typer.Option("--all", help="Every message in quarantine, kept or not.")]
AcceptDuplicates = Annotated[
    bool,
    typer.Option(
        "--accept-duplicates",
        help="Also what a worker of Postal has written about since it was closed.",
    ),
]
_COLUMNS = (
    *("server", "message", "state", "stage", "rcptTo", "mailFrom", "bytes", "closedAt"),
    *("lockedBy", "lockedAt", "reason"),
)


@command(app, "list")
def list_(out: Output) -> None:
    """Messages that wait for a person, and what Postal says of each now."""
    from mailslice.duties.stuck_mails_postal.quarantined import look_up

    with open_stores() as stores:
        found = look_up(stores.postal, _entries(stores))
        for why in dict.fromkeys(one.why for one in found if one.why):
            out.note(f"a server cannot be asked: {why}")
        out.rows(map(_shown, found), _COLUMNS, empty="no message of Postal is in quarantine")


@command(app, "release")
def release(
    out: Output,
    *,
    server: Server = None,
    message: Message = None,
    every: Kept = False,
    accept_duplicates: AcceptDuplicates = False,
    yes: Yes = False,
    reason: Reason = None,
) -> None:
    """Put messages back into Postal's queue, each once. A line a message.

    With --all, those that are not kept are passed over. At a terminal it asks first.
    """
    _one_of("release", server, message, every)

    def one(releases: "PostalReleases", entry: "PostalEntry") -> dict[str, object]:
        return {"result": "released", "queuedMessage": releases.release(entry)}

    _act(
        out,
        "release",
        (server, message),
        reason=reason,
        accept=accept_duplicates,
        ask=None if yes else "Put {} messages back into Postal's queue?",
        one=one,
    )


@command(app, "discard")
def discard(
    out: Output,
    *,
    server: Server = None,
    message: Message = None,
    every: All = False,
    yes: Yes = False,
    reason: Reason = None,
) -> None:
    """Remove messages from the quarantine for good; Postal's hold of them is cancelled.

    At a terminal it asks first. A message that Postal holds no more by our record stays as it is
    there.
    """
    _one_of("discard", server, message, every)

    def one(releases: "PostalReleases", entry: "PostalEntry") -> dict[str, object]:
        releases.discard(entry)
        return {"result": "discarded"}

    _act(
        out,
        "discard",
        (server, message),
        reason=reason,
        accept=False,
        ask=None if yes else "Remove {} messages from the quarantine for good?",
        one=one,
    )


@command(app, "export")
def export(out: Output, folder: Folder, *, server: Server = None, message: Message = None) -> None:
    """Write contents as SERVER-MESSAGE.eml, byte for byte as they were closed. They stay."""
    from mailslice.cli.exporting import prepare
    from mailslice.duties.stuck_mails_postal.keeping import PostalCopies
    from mailslice.maintenance.artifacts import artifacts

    if (server is None) != (message is None):
        raise BadInput("postal quarantine export: give --server and --message together, or neither")
    prepare(folder)
    failures: list[str] = []
    with open_stores() as stores:
        copies = PostalCopies(artifacts(stores.settings))

        def lines() -> Iterator[dict[str, object]]:
            for entry in _chosen(stores, "export", server, message):
                line = _exported(copies.load(entry.copy_id), entry, folder)
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
    path = folder / f"{entry.server}-{entry.message}.eml"
    error = None
    if content is None or hashlib.sha256(content).hexdigest() != entry.sha256:
        error = "its copy is missing or damaged in the artifacts location"
    else:
        error = _written(path, content)
    return {
        "server": entry.server,
        "message": entry.message,
        "path": str(path) if error is None else None,
        "bytes": entry.size,
        "sha256": entry.sha256,
        "error": error,
    }


def _written(path: Path, content: bytes) -> str | None:
    """Link a complete file, which never replaces another; None, or why not."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(part, path)
    except FileExistsError:
        if not path.is_symlink() and path.is_file() and path.read_bytes() == content:
            return None
        return f"{path} exists with other content: left as it is"
    except OSError as error:
        raise MailsliceError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return None


def _one_of(doing: str, server: int | None, message: int | None, every: bool) -> None:
    one = server is not None and message is not None
    if one == every or (server is None) != (message is None):
        raise BadInput(f"postal quarantine {doing}: give either --server N --message ID, or --all")


def _act(
    out: Output,
    doing: str,
    chosen: tuple[int | None, int | None],
    *,
    reason: str | None,
    accept: bool,
    ask: str | None,
    one: "Callable[[PostalReleases, PostalEntry], dict[str, object]]",
) -> None:
    """One message after the other. Refused ones end with SomeFailed, but for `--all`."""
    from mailslice.duties.stuck_mails_postal.releases import (
        NotReleased,
        ReleaseRequest,
        open_releases,
    )

    every = chosen == (None, None)
    refused: list[str] = []
    with open_stores() as stores:
        entries = list(_chosen(stores, doing, *chosen))
        if not entries:
            out.note("no message of Postal is in quarantine")
            return
        if ask is not None and sys.stdin.isatty():
            confirm(ask.format(len(entries)), yes=False)
        request = ReleaseRequest(who(), reason or "", accept)
        with open_releases(stores, system_clock, request) as releases:
            for entry in entries:
                about: dict[str, object] = {"server": entry.server, "message": entry.message}
                try:
                    outcome = one(releases, entry)
                except NotReleased as error:
                    outcome = {"result": "refused", "why": str(error)}
                    refused.append(str(error))
                else:
                    record(stores.settings, f"postal {doing}", None, reason, **about)
                out.line(about | outcome, _sentence(about | outcome))
    if refused and not every:
        raise SomeFailed(f"postal quarantine {doing}: {refused[0]}")


def _sentence(line: dict[str, object]) -> str:
    words = [str(line["result"]), f"message {line['message']} of server {line['server']}"]
    if line.get("queuedMessage") is not None:
        words.append(f"as queue row {line['queuedMessage']}")
    if line.get("why"):
        words.append(shown(str(line["why"])))
    return ": ".join([" ".join(words[:2]), *words[2:]])


def _entries(stores: "Stores") -> "list[PostalEntry]":
    """Everything in quarantine. Looking makes no table."""
    from mailslice.duties.stuck_mails_postal.quarantined import in_quarantine
    from mailslice.stores.own.postal_quarantine import POSTAL_QUARANTINE, PostalQuarantineTable

    _ = stores.postal  # names the setting that is missing
    records = stores.existing_records(POSTAL_QUARANTINE)
    return [] if records is None else in_quarantine(PostalQuarantineTable(records).list())


def _chosen(
    stores: "Stores", doing: str, server: int | None, message: int | None
) -> "Iterable[PostalEntry]":
    entries = _entries(stores)
    if server is None:
        return entries
    found = [one for one in entries if (one.server, one.message) == (server, message)]
    if not found:
        raise BadInput(
            f"postal quarantine {doing}: message {message} of server {server} is not in "
            "quarantine; allowed are those that 'mailslice postal quarantine list' shows"
        )
    return found


def _shown(found: "QuarantinedMessage") -> dict[str, Any]:
    entry = found.entry
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
        "state": found.state,
    }
