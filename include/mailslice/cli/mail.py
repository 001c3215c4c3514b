"""`mailslice mail`: one mail, and new mails."""

import hashlib
import sys
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mailslice.cli.arguments import Queue, Reason, Sender, duration, option, queue_option
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.queue_session import open_queue, open_stores, record, run
from mailslice.cli.shapes import LOST, PRESENT, with_next_delivery
from mailslice.codec.addresses import checked_address
from mailslice.codec.content import split
from mailslice.codec.shown import shown
from mailslice.model.command_line import command_line
from mailslice.model.delay_levels import LONGEST_DELAY
from mailslice.model.errors import BadInput, ContentMissing, SomeFailed
from mailslice.model.mail import EnqueueId, QueueName, ViewRow, parse_enqueue_id
from mailslice.model.settings import load_settings

if TYPE_CHECKING:
    from mailslice.admin.mail_queue import MailQueue

app = group("Mails: show one, trace one, enqueue new ones.")


@command(app, "show")
def show(
    out: Output,
    queue: Queue,
    name: Annotated[
        str | None, option("--name NAME", "Name of the mail; several mails may have it.")
    ] = None,
    enqueue_id: Annotated[
        EnqueueId | None, option("--id ID", "Enqueue id.", parse_enqueue_id)
    ] = None,
    raw: Annotated[
        bool, option("--raw", "Write the content itself to stdout, byte for byte; no --json.")
    ] = False,
) -> None:
    """One mail of a queue: envelope, state, attributes and headers; or, with --raw, its content."""
    if (name is None) == (enqueue_id is None):
        raise BadInput("mail show: give either --name or --id")
    if raw and out.as_json:
        raise BadInput("mail show: give either --raw or --json; raw content is no JSON")
    selector = f"--name {name!r}" if name is not None else f"--id {enqueue_id}"
    with open_queue(queue) as opened:
        rows = opened.queue.find(name=name, enqueue_id=enqueue_id)
        if not rows:
            raise BadInput(
                f"mail show: {queue} has no mail {selector}; allowed are those that "
                f"`{command_line('queue browse', queue)}` lists"
            )
        if not raw:
            lines = with_next_delivery(opened.stores, queue, rows)
            for row, line in zip(rows, lines, strict=True):
                out.one(line | _content(opened.queue, row, as_json=out.as_json))
        elif len(rows) > 1:
            raise BadInput(
                f"mail show --raw: {len(rows)} mails of {queue} are {selector}; give one "
                f"--id: {', '.join(str(row.enqueue_id) for row in rows[:5])}"
            )
        else:
            try:
                out.raw(opened.queue.content(rows[0]))
            except ContentMissing as error:
                raise SomeFailed(f"{LOST}: {rows[0].enqueue_id}: {error}") from error


@command(app, "trace")
def trace(
    out: Output,
    mail: Annotated[
        str, typer.Argument(metavar="ID|NAME", help="Enqueue id, or the name of the mail.")
    ],
    *,
    queue: Annotated[
        QueueName | None, queue_option("Ask this queue only; all when not given.")
    ] = None,
    log: Annotated[
        str | None,
        option(
            "--log FILE",
            "A log of workers or smtp-in, for the mail's events; - is stdin; by default "
            "MAILSLICE_LOG_FILES.",
        ),
    ] = None,
) -> None:
    """Where a mail is, by the stores, the duties and a log. Reads only.

    A line for each source, with its time. A source that does not answer is unknown (exit 4). A mail
    that no source knows: exit 2.
    """
    from mailslice.maintenance import mail_trace

    with open_stores() as stores:
        target = mail_trace.TracedMail.of(mail)
        tracing = mail_trace.Trace(stores, target, [queue] if queue else [])
        with ExitStack() as files:
            events = mail_trace.events_of(target, stores.settings.log.files)
            if log == "-":
                events = mail_trace.events_in(sys.stdin)
            elif log is not None:
                try:
                    file = files.enter_context(Path(log).open(encoding="utf-8", errors="replace"))
                except OSError as error:
                    raise BadInput(
                        f"--log {log!r}: {error.strerror}; allowed: a file with a log, or -"
                    ) from error
                events = mail_trace.events_in(file)
            entries = tracing.run(events)
        lines = [one for one in entries if out.as_json or one["answer"] != mail_trace.NO]
        out.rows(lines, empty="no place has anything of this mail")
        tracing.raise_for(mail)


@command(app, "enqueue")
def enqueue(
    out: Output,
    queue: Queue,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="A .eml file, an mbox, a Maildir, a folder of .eml files, or - for stdin: an "
            "mbox if it begins with a line 'From ' that has a time and a year, else one mail; in "
            "an mbox every line 'From ' after an empty one, or with a time and a year, begins the "
            "next mail.",
        ),
    ],
    *,
    sender: Sender = None,
    recipient: Annotated[
        list[str] | None,
        option(
            "--recipient ADDRESS",
            "Envelope recipient; give it several times for several.",
            checked_address,
        ),
    ] = None,
    name: Annotated[
        str | None, option("--name NAME", "Name of the mail; a unique one is made when not given.")
    ] = None,
    state: Annotated[str, option("--state PROCESSOR", "James' processor.")] = "root",
    delay: Annotated[
        timedelta | None,
        option(
            "--delay DURATION",
            "Deliver after this much time, at most 30d.",
            partial(duration, maximum=LONGEST_DELAY),
        ),
    ] = None,
    reason: Reason = None,
) -> None:
    """Enqueue mails. Sender and recipients come from the headers when not given.

    Prints a line for each mail once it is durable, then the failures.
    """
    from mailslice.cli.bulk_enqueue import BulkEnqueue, EnvelopeOptions
    from mailslice.worker import open_worker

    _checked_text("--name", name)
    _checked_text("--state", state)
    settings = load_settings()
    recipients = tuple(dict.fromkeys(recipient or ()))
    options = EnvelopeOptions(sender, recipients, name, state, delay, settings.queue.max_mail_bytes)

    async def work() -> BulkEnqueue:
        async with open_worker(settings, queue) as worker:
            bulk = BulkEnqueue(worker, options, out)
            try:
                await bulk.run(paths)
            finally:
                if bulk.done and reason:
                    record(settings, "mail enqueue", queue, reason, enqueued=bulk.done)
                for failure in bulk.failures:
                    path, error = (shown(str(failure[key])) for key in ("path", "error"))
                    if out.as_json:
                        out.one(failure)
                    else:
                        out.note(f"failed: {path}: {error}")
            return bulk

    result = run(work())
    if result.failures:
        first = result.failures[0]
        raise SomeFailed(
            f"{len(result.failures)} of {result.done + len(result.failures)} mails were "
            f"not enqueued; the first: {first['path']}: {first['error']}"
        )
    if not out.as_json:
        out.note(f"{result.done} mails enqueued to {queue}")


def _checked_text(option_name: str, text: str | None) -> None:
    if text is not None and (not text or len(text) > 1000 or not text.isprintable()):
        raise BadInput(
            f"{option_name}: {text[:60]!r} is not allowed; 1 to 1000 printable characters are"
        )


def _content(queue: "MailQueue", row: "ViewRow", *, as_json: bool) -> dict[str, object]:
    """Header block, size and digest of the content. Reports lost content, does not raise."""
    try:
        content = queue.content(row)
    except ContentMissing as error:
        lost = {"content": LOST, "contentError": str(error)}
        return lost | dict.fromkeys(("bytes", "sha256", "headers"))
    headers = bytes(split(content)[0]).decode("utf-8", "replace")
    return {
        "content": PRESENT,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "headers": headers if as_json else headers.splitlines(),
    }
