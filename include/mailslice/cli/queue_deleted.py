"""`mailslice queue deleted` and `queue undelete`: lists deleted mails, and brings them back."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated

from mailslice.cli.arguments import DryRun, Limit, Queue, Reason, Yes, option
from mailslice.cli.command import command
from mailslice.cli.output import Output
from mailslice.cli.queue import app
from mailslice.cli.queue_session import confirm, may_ask, open_queue, record
from mailslice.cli.selection import FilterCommand, MailOptions
from mailslice.model.clock import system_clock
from mailslice.model.command_line import command_line
from mailslice.model.errors import BadInput, SomeFailed

if TYPE_CHECKING:
    from mailslice.admin.deletions import DeletedMail, Undeleted

_COLUMNS = (
    *("enqueueId", "name", "sender", "recipients", "bytes", "content", "run", "deletedAt"),
    *("until", "who", "reason", "undeletedAs"),
)
_RUN_COLUMNS = ("run", "mails", "bytes", "contentLost", "deletedAt", "until", "who", "reason")
RunOption = Annotated[
    str | None, option("--run ID", "Only those of one delete or clear: the run that it printed.")
]


@command(app, "deleted", FilterCommand)
def deleted(
    out: Output,
    queue: Queue,
    *,
    run: RunOption = None,
    mails: MailOptions,
    limit: Limit = None,
    runs: Annotated[
        bool, option("--runs", "A line for each delete and clear, not for each mail.")
    ] = False,
) -> None:
    """Mails that people deleted and 'queue undelete' can bring back, the newest run first."""
    from mailslice.admin.deletions import deleted_mails, deleted_runs

    mail_filter = mails.parsed(looks=True)
    if runs and not (mail_filter.is_empty and run is None):
        raise BadInput("queue deleted --runs: it counts whole runs; give no filter and no --run")
    with open_queue(queue) as opened:
        stores, now = opened.stores, system_clock()
        if runs:
            lines = deleted_runs(stores, opened.queue.name, now)
            out.rows(islice(lines, limit), _RUN_COLUMNS, empty="nothing that was deleted is kept")
            return
        batches = deleted_mails(stores, opened.queue.name, now, mail_filter, run)
        rows = (mail.as_json() for mail in chain.from_iterable(batches))
        out.rows(islice(rows, limit), _COLUMNS, empty="no deleted mail is kept")


@command(app, "undelete", FilterCommand)
def undelete(
    out: Output,
    queue: Queue,
    *,
    run: RunOption = None,
    mails: MailOptions,
    accept_duplicates: Annotated[
        bool,
        option(
            "--accept-duplicates",
            "Also mails that a worker had, or whose delete was interrupted: they may have been "
            "delivered.",
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    reason: Reason = None,
) -> None:
    """Bring deleted mails back into their queue: those of a run, or that match all given options.

    Each comes back once, as a new entry with a new enqueue id, and is delivered at once. When
    stdin is a terminal it asks first. After an interruption the same command finishes it.
    """
    from mailslice.admin import deletions

    if run is None and not mails.name_mails:
        raise BadInput(
            f"queue undelete {queue}: give at least one of --run, --name, --id, --sender, "
            f"--recipient, --domain (--older-than only narrows them); "
            f"`{command_line('queue deleted', queue, '--runs')}` shows the runs"
        )
    mail_filter = mails.parsed()
    with open_queue(queue, create=not dry_run) as opened:
        stores, name, outcome = opened.stores, opened.queue.name, deletions.Undeleted()

        def restorable(counted: deletions.Undeleted) -> "Iterator[list[DeletedMail]]":
            scope = stores, name, system_clock(), mail_filter, run
            return deletions.deleted_mails(*scope, on_missing=counted.count_lost)

        if dry_run or may_ask(yes):
            estimate = deletions.Undeleted()
            deletions.forecast(restorable(estimate), estimate, accept_duplicates=accept_duplicates)
            if dry_run:
                out.one({"queue": queue, **_as_row(out, estimate), "dryRun": True})
                return
            confirm(f"Bring {estimate.undeleted} mails back into {queue}?")
        try:
            scope = stores, name, system_clock, restorable(outcome), outcome
            deletions.undelete(*scope, accept_duplicates=accept_duplicates)
        finally:
            facts = {**outcome.as_json(), "run": run, "filter": mail_filter.as_json()}
            record(opened.settings, "queue undelete", queue, reason, **facts)
    out.one({"queue": queue, **_as_row(out, outcome)})
    if problem := outcome.problem("--accept-duplicates"):
        raise SomeFailed(f"queue undelete: {problem}")


def _as_row(out: Output, outcome: "Undeleted") -> dict[str, object]:
    fields = outcome.as_json()
    return {key: fields[key] for key in fields if out.as_json or key != "ids"}
