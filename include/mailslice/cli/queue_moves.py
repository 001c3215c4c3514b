"""`mailslice queue retry`, `delay` and `move`: deliver mails sooner, later or from elsewhere."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

from mailslice.admin.filters import MailFilter
from mailslice.cli import arguments
from mailslice.cli.arguments import DryRun, Limit, Queue, Reason, Yes
from mailslice.cli.command import command
from mailslice.cli.output import Output
from mailslice.cli.queue import app
from mailslice.cli.queue_session import confirm, need_yes, open_queue, record, run, who
from mailslice.cli.selection import FilterCommand, MailOptions
from mailslice.maintenance.decision_files import SHOWN_IDS
from mailslice.model.clock import system_clock
from mailslice.model.delay_levels import LONGEST_DELAY
from mailslice.model.errors import BadInput, SomeFailed
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings

__all__ = ["app"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """The options of a move and of a delay."""

    limit: Limit = None
    accept_duplicates: Annotated[
        bool,
        arguments.option(
            "--accept-duplicates",
            "Move mails, too, that an earlier move took out of the queue and that may have "
            "been delivered since.",
        ),
    ] = False
    yes: Yes = False
    dry_run: DryRun = False
    reason: Reason = None


@command(app, "retry", FilterCommand)
def retry(
    out: Output, queue: Queue, *, mails: MailOptions, dry_run: DryRun = False, reason: Reason = None
) -> None:
    """Try delayed mails now: all of them, or those that match all given options.

    Each is delivered once, also after an interruption or a second call. Mails that are due within a
    minute are left alone. It fails for mails that are overdue: 'queue flush' delivers them.
    """
    from mailslice.worker import retries

    mail_filter, settings = mails.parsed(), load_settings()
    outcome, pending = retries.Retried(), None
    try:
        pending = run(retries.retry(settings, queue, mail_filter, outcome, dry_run=dry_run))
    finally:
        if not dry_run and (outcome.retried or pending is not None):
            facts = {"filter": mail_filter.as_json(), "ids": outcome.retried[:SHOWN_IDS]}
            record(settings, "queue retry", queue, reason, **outcome.counts, **facts)
    about = outcome.counts | ({"dryRun": True} if dry_run else {"pending": pending})
    if pending:
        out.note(f"{pending} mails are due, and not in the work queue yet: a worker brings them")
    out.one({"queue": queue, **about})
    if not dry_run and (problem := outcome.problem(queue)):
        raise SomeFailed(f"queue retry: {problem}")


@command(app, "move", FilterCommand)
def move(
    out: Output,
    queue: Annotated[QueueName, arguments.queue_argument("FROM", "Queue that has them.")],
    into: Annotated[QueueName, arguments.queue_argument("TO", "Queue that gets them.")],
    *,
    mails: MailOptions,
    options: MoveOptions,
) -> None:
    """Move mails to another queue: all of them, or those that match all given options.

    Each gets a new enqueue id there, and is delivered at once. After an interruption the same
    command finishes it: no mail is lost or doubled. Mails that a worker may have delivered
    meanwhile are kept back and named.
    """
    if queue == into:
        raise BadInput(f"queue move: FROM and TO are one queue, {queue!r}; two are allowed")
    _move(out, queue, into, mails.parsed(), options)


@command(app, "delay", FilterCommand)
def delay(
    out: Output,
    queue: Queue,
    *,
    lasts: Annotated[
        timedelta,
        arguments.option(
            "--for DURATION",
            "How long they wait from now: 30m, 2h. At least 1m, at most 30d.",
            partial(arguments.duration, maximum=LONGEST_DELAY, minimum=timedelta(minutes=1)),
        ),
    ],
    mails: MailOptions,
    options: MoveOptions,
) -> None:
    """Deliver mails later: all of them, or those that match all given options.

    Each becomes a new entry of its queue with a new id, as with a move; mails that are due later
    stay. It needs a worker of mailslice on the queue. 'queue retry' ends the delay.
    """
    _move(out, queue, queue, mails.parsed(), options, due=system_clock() + lasts)


def _move(
    out: Output,
    queue: QueueName,
    into: QueueName,
    mail_filter: MailFilter,
    options: MoveOptions,
    *,
    due: datetime | None = None,
) -> None:
    from mailslice.admin import queues
    from mailslice.admin.moves import MoveOutcome, Moves, forecast

    doing, done = ("delay", "delayed") if due else ("move", "moved")
    about: dict[str, object] = {"due": due} if due else {"to": into}
    outcome = MoveOutcome()
    need_yes(options.yes or options.dry_run, f"queue {doing}")
    with open_queue(queue, create=not options.dry_run) as opened:
        queues.require(opened.stores, into)
        if options.dry_run or not options.yes:
            rows = opened.queue.browse(mail_filter, options.limit)
            counts = forecast(opened.stores, queue, rows, system_clock, due)
            if options.dry_run:
                out.one({"queue": queue, **about, **counts, "dryRun": True})
                return
            every = "all " if mail_filter.matches_all else ""
            until = f"until {due:%Y-%m-%d %H:%M} UTC" if due else f"to {into}"
            confirm(f"{doing.capitalize()} {every}{counts[done]} mails of {queue} {until}?")
        try:
            Moves(opened.stores, queue, system_clock).move(
                opened.queue.matching(mail_filter, options.limit),
                into,
                why=options.reason or "by hand",
                who=who(),
                accept_duplicates=options.accept_duplicates,
                outcome=outcome,
                due=due,
            )
        finally:
            about |= {**outcome.counts, **outcome.names}
            facts = {"filter": mail_filter.as_json(), "ids": outcome.shown_ids(SHOWN_IDS)}
            record(opened.settings, f"queue {doing}", queue, options.reason, **about, **facts)
    out.one({"queue": queue, **about})
    if problem := outcome.problem("--accept-duplicates"):
        raise SomeFailed(f"queue {doing}: {problem}")
