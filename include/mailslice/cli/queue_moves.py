"""`mailslice queue retry` and `queue move`: mails that wait are brought on their way."""

from typing import TYPE_CHECKING, Annotated

import typer

from mailslice.cli.arguments import DryRun, Limit, Queue, Reason, Yes
from mailslice.cli.command import command
from mailslice.cli.output import Output
from mailslice.cli.queue import app
from mailslice.cli.queue_session import (
    OpenQueue,
    confirm,
    need_yes,
    open_queue,
    record,
    run,
    who,
)
from mailslice.cli.selection import MailOptions
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput, SomeFailed
from mailslice.model.mail import QueueName
from mailslice.model.names import queue_name
from mailslice.model.settings import load_settings

if TYPE_CHECKING:
    from mailslice.admin.filters import MailFilter

__all__ = ["app"]
_MOST_IDS = 100
"""Of the mails, in the record of a decision."""


@command(app, "retry")
def retry(
    out: Output,
    queue: Queue,
    *,
    mails: MailOptions,
    dry_run: DryRun = False,
    reason: Reason = None,
) -> None:
    """Try delayed mails now: all of them, or those for which all that is given holds.

    Each is delivered once, also when this is asked again or cut off. Mails that are due within a
    minute are left to their time.
    """
    from mailslice.worker import open_worker
    from mailslice.worker.retrying import Retried, deliver_due, retry_now

    mail_filter = mails.parsed()
    settings = load_settings()

    async def work() -> tuple[Retried, int]:
        async with open_worker(settings, queue) as worker:
            outcome = await retry_now(worker, mail_filter, dry_run=dry_run)
            pending = 0 if dry_run else await deliver_due(worker, outcome.retried)
            return outcome, pending

    outcome, pending = run(work())
    about = outcome.counts | ({"dryRun": True} if dry_run else {"pending": pending})
    if not dry_run:
        facts = {"filter": mail_filter.as_json(), "ids": outcome.retried[:_MOST_IDS]}
        record(settings, "queue retry", queue, reason, **outcome.counts, **facts)
    if pending:
        out.note(f"{pending} mails are due, and not in the work queue yet: a worker brings them")
    out.one({"queue": queue, **about})


@command(app, "move")
def move(
    out: Output,
    queue: Annotated[
        QueueName, typer.Argument(parser=queue_name, metavar="FROM", help="Queue that has them.")
    ],
    into: Annotated[
        QueueName, typer.Argument(parser=queue_name, metavar="TO", help="Queue that gets them.")
    ],
    *,
    mails: MailOptions,
    limit: Limit = None,
    accept_duplicates: Annotated[
        bool,
        typer.Option(
            "--accept-duplicates",
            help="Move mails, too, at which an earlier move was cut off and that may have been "
            "delivered since.",
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    reason: Reason = None,
) -> None:
    """Move mails to another queue: all of them, or those for which all that is given holds.

    Each gets a new enqueue id there, and is delivered at once. Cut off and asked again, it is
    finished: no mail is lost or doubled.
    """
    from mailslice.admin import queues

    if queue == into:
        raise BadInput(f"queue move: FROM and TO are one queue, {queue!r}; two are allowed")
    if not dry_run:
        need_yes(yes, "queue move")
    mail_filter = mails.parsed()
    with open_queue(queue) as opened:
        queues.require(opened.stores, into)
        if dry_run or not yes:
            count = sum(1 for _ in opened.queue.browse(mail_filter, limit))
            if dry_run:
                out.one({"queue": queue, "to": into, "moved": count, "dryRun": True})
                return
            every = "all " if mail_filter.matches_all else ""
            confirm(f"Move {every}{count} mails of {queue} to {into}?", yes)
        _move(
            out,
            opened,
            mail_filter,
            into,
            limit=limit,
            accept_duplicates=accept_duplicates,
            reason=reason,
        )


def _move(
    out: Output,
    opened: OpenQueue,
    mail_filter: "MailFilter",
    into: QueueName,
    *,
    limit: int | None,
    accept_duplicates: bool,
    reason: str | None,
) -> None:
    from mailslice.admin.moving import MoveOutcome, Moves

    queue, outcome = opened.queue.name, MoveOutcome()
    moves = Moves(opened.stores, queue, system_clock)
    try:
        moves.move(
            opened.queue.matching(mail_filter, limit),
            into,
            why=reason or "by hand",
            who=who(),
            accept_duplicates=accept_duplicates,
            outcome=outcome,
        )
    finally:
        ids = outcome.shown_ids(_MOST_IDS)
        facts = {"to": into, "filter": mail_filter.as_json(), "ids": ids}
        record(opened.settings, "queue move", queue, reason, **outcome.counts, **facts)
    out.one({"queue": queue, "to": into, **outcome.counts})
    if problem := outcome.problem("--accept-duplicates"):
        raise SomeFailed(f"queue move: {problem}")
