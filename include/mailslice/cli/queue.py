"""`mailslice queue`: queues as a whole, and the mails that wait in them."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Annotated

from mailslice.cli import arguments, queue_session, shapes
from mailslice.cli.arguments import DryRun, Folder, Limit, Queue, Reason, Yes
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.queue_session import OpenQueue, open_queue
from mailslice.cli.selection import FilterCommand, MailOptions
from mailslice.maintenance.artifacts import artifacts
from mailslice.model.clock import system_clock
from mailslice.model.command_line import command_line
from mailslice.model.dead_letters import MAX_CHECKED_OUT
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, QueueName, parse_enqueue_id
from mailslice.model.names import RabbitNames
from mailslice.model.settings import load_settings
from mailslice.stores import Stores

app = group("Queues: create, look, count, delete.")
_SHOWN = ("deleted", "restorableUntil")
_LIST_COLUMNS = (
    *("queue", "health", "size", "ready", "unacknowledged", "delayed", "parked", "deadLetters"),
    *("workers", "why", "next"),
)


@command(app, "create")
def create(out: Output, queue: Queue, reason: Reason = None) -> None:
    """Create a queue: exchanges and queues in RabbitMQ, missing tables and bucket.

    An existing queue stays as it is.
    """
    from mailslice.admin import queues

    with queue_session.open_stores() as stores:
        queues.create(stores, queue)
        queue_session.record(stores.settings, "queue create", queue, reason)
        out.one(_summary(stores, queue))


@command(app, "list")
def list_(out: Output) -> None:
    """All mail queues that RabbitMQ has, the worst first: health, why, and what to do next.

    No view is scanned: 'sizeAt' says when the mails were counted. 'queue size' counts now. Without
    Cassandra it shows RabbitMQ's figures, and the exit code is 4; 2 where it refuses a setting.
    """
    from mailslice.maintenance.overview import as_json, overview

    with queue_session.open_stores() as stores:
        overviews = overview(stores, system_clock)
        out.rows(
            ({**as_json(entry), "table": stores.settings.queue.table} for entry in overviews),
            _LIST_COLUMNS,
            empty="there is no mail queue; create one: mailslice queue create QUEUE",
        )
    for error in (error for entry in overviews for error in entry.unanswered.values()):
        raise error


@command(app, "show")
def show(out: Output, queue: Queue) -> None:
    """One queue: size, starts, configuration, and what RabbitMQ counts."""
    with open_queue(queue) as opened:
        out.one(_details(opened))


@command(app, "size")
def size(out: Output, queue: Queue) -> None:
    """How many mails are in the queue: exact to the last enqueue, delayed mails included."""
    with open_queue(queue) as opened:
        out.one({"queue": queue, "size": opened.queue.size()})


@command(app, "browse", FilterCommand)
def browse(
    out: Output,
    queue: Queue,
    *,
    limit: Limit = None,
    mails: MailOptions,
    after: Annotated[
        EnqueueId | None,
        arguments.option(
            "--after ID",
            "The mails behind this one: the last of the page before. It may be done by now.",
            parse_enqueue_id,
        ),
    ] = None,
    due_before: Annotated[
        datetime | None,
        arguments.option(
            "--due-before TIME",
            "Delayed mails that are due before a time, or within 2h, 30d.",
            partial(arguments.moment, ahead=True),
        ),
    ] = None,
    content: Annotated[
        bool,
        arguments.option(
            "--content",
            "Also say whether each mail's content is there, or lost: two requests of S3 a mail.",
        ),
    ] = False,
) -> None:
    """The mails of the queue, oldest first, without their content."""
    mail_filter = mails.parsed(looks=True)
    with open_queue(queue) as opened:
        view_rows = opened.queue.browse(mail_filter, None if due_before else limit, after)
        rows = shapes.with_next_delivery(opened.stores, queue, view_rows)
        if due_before is not None:
            delayed = (row for row in rows if row["nextDelivery"] is not None)
            rows = islice((row for row in delayed if row["nextDelivery"] < due_before), limit)
        if content:
            rows = shapes.with_content(opened.stores, opened.queue, rows)
        columns = (*shapes.MAIL_COLUMNS, "content") if content else shapes.MAIL_COLUMNS
        out.rows(rows, columns, empty="no mail")


@command(app, "shape")
def shape(
    out: Output,
    queue: Queue,
    limit: Annotated[
        int | None,
        arguments.option(
            "--limit N",
            "Name this many domains, the fullest; the rest is one line, (others).",
            arguments.count,
        ),
    ] = None,
) -> None:
    """Mails by recipient domain and age in minutes, with those that wait for a destination."""
    from mailslice.cli.queue_shape import as_table, shape_rows

    with open_queue(queue) as opened:
        lines = shape_rows(opened.stores, queue, opened.queue.browse(), system_clock(), limit)
        out.rows(lines if out.as_json else [as_table(line) for line in lines])


@command(app, "slices")
def slices(out: Output, queue: Queue) -> None:
    """Live and dead rows of each slice."""
    with open_queue(queue) as opened:
        rows = (
            {"queue": queue, "slice": counts.slice_start, "live": counts.live, "dead": counts.dead}
            for counts in opened.queue.slices()
        )
        out.rows(rows, ("slice", "live", "dead"), empty="no slice holds a row")


@command(app, "audit")
def audit(out: Output, queue: Queue) -> None:
    """The mails of the last audit, each with its verdict and why; without an audit, exit 2.

    'duty run queue_audit --queue QUEUE' makes one.
    """
    from mailslice.maintenance.audits import newest_audit

    with open_queue(queue) as opened:
        newest = newest_audit(opened.stores, queue)
        if newest is None:
            raise BadInput(
                f"queue audit: no audit of {queue} is done; make one: "
                f"{command_line('duty run queue_audit --queue', queue)}"
            )
        census = ", with a census" if newest.census else ""
        if newest.needless:
            census = ", which needed no census: no mail was old enough"
        out.note(f"audit {newest.run} of {newest.made_at:%Y-%m-%dT%H:%M:%SZ}{census}")
        mails = newest.mails(artifacts(opened.stores.settings))
        out.rows((mail.line() for mail in mails), empty="no mail was old enough")


@command(app, "dead")
def dead(out: Output, queue: Queue, limit: Limit = None) -> None:
    """The dead letters of the queue, the head first, and why each died. They stay.

    'duty run dead_letters' drops, exports or redrives them.
    """
    from mailslice.admin.dead_letters import classify, peek

    with open_queue(queue) as opened:
        max_letters = min(limit or MAX_CHECKED_OUT, MAX_CHECKED_OUT)
        peeked = peek(opened.stores, opened.queue.name, max_letters)
        if peeked.unseen:
            out.note(f"{peeked.unseen} more lie behind these")
        letters = classify(opened.stores, opened.queue.name, peeked.letters)
        out.rows(map(shapes.dead_letter, letters), shapes.DEAD_COLUMNS, empty="no dead letter")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """The options of a delete and of a clear."""

    yes: Yes = False
    dry_run: DryRun = False
    no_undo: Annotated[
        bool, arguments.option("--no-undo", "Keep no copy: what is deleted cannot be brought back.")
    ] = False
    reason: Reason = None


@command(app, "delete", FilterCommand)
def delete(out: Output, queue: Queue, *, mails: MailOptions, options: DeleteOptions) -> None:
    """Delete mails by id, sender, recipient, domain, name and age: those that match all given.

    RabbitMQ's messages of deleted mails are dropped at delivery. 'queue undelete' brings them back
    for MAILSLICE_ADMIN_UNDO_FOR, 7 days.
    """
    if not mails.name_mails:
        raise BadInput(
            f"queue delete {queue}: give at least one of --sender, --recipient, --name, "
            "--domain, --id (--older-than only narrows them; queue clear deletes all)"
        )
    _delete(out, queue, mails, options)


@command(app, "clear")
def clear(out: Output, queue: Queue, *, options: DeleteOptions) -> None:
    """Delete all mails of a queue. 'queue undelete' brings them back, as after 'queue delete'."""
    _delete(out, queue, None, options)


@command(app, "flush")
def flush(out: Output, queue: Queue, reason: Reason = None) -> None:
    """Deliver delayed mails now. Refused while another flush or retry of the queue goes on."""
    from mailslice.worker import retries

    settings = load_settings()

    def record_flush(flushed: int) -> None:
        queue_session.record(settings, "queue flush", queue, reason, flushed=flushed)

    out.one(
        {"queue": queue, "flushed": queue_session.run(retries.flush(settings, queue, record_flush))}
    )


@command(app, "export", FilterCommand)
def export(
    out: Output, queue: Queue, folder: Folder, *, limit: Limit = None, mails: MailOptions
) -> None:
    """Write the mails of a queue as .eml files, byte for byte. They stay in the queue."""
    from mailslice.cli.eml_export import export_mails

    mail_filter = mails.parsed(looks=True)
    with open_queue(queue) as opened:
        export_mails(out, opened.queue, opened.queue.browse(mail_filter, limit), folder)


def _delete(
    out: Output, queue: QueueName, mails: MailOptions | None, options: DeleteOptions
) -> None:
    from mailslice.admin.deletions import Deletion

    action = "queue clear" if mails is None else "queue delete"
    queue_session.need_yes(options.yes or options.dry_run, action)
    mail_filter = None if mails is None else mails.parsed()
    deletion = Deletion(queue_session.who(), options.reason or "", undo=not options.no_undo)
    with open_queue(queue) as opened:
        view = opened.queue
        if options.dry_run or not options.yes:
            every = mail_filter is None or mail_filter.matches_all
            matching = view.delete(mail_filter, dry_run=True) if mail_filter else view.size()
            if options.dry_run:
                out.one({"queue": queue, "deleted": matching, "dryRun": True})
                return
            queue_session.confirm(f"Delete {'all ' if every else ''}{matching} mails of {queue}?")
        filter_facts = {"filter": mail_filter.as_json()} if mail_filter else {}
        try:
            if mail_filter:
                view.delete(mail_filter, deletion=deletion)
            else:
                view.clear(deletion)
        finally:
            facts = {**deletion.as_json(), **filter_facts}
            queue_session.record(opened.settings, action, queue, options.reason or None, **facts)
    done = deletion.as_json()
    out.one({"queue": queue, **{key: done[key] for key in done if out.as_json or key in _SHOWN}})
    if deletion.until:
        out.note(f"undo: {command_line('queue undelete', queue, '--run', deletion.run)}")


def _summary(stores: Stores, name: QueueName) -> dict[str, object]:
    from mailslice.admin.mail_queue import MailQueue

    names, depth = RabbitNames(name), stores.management.depth
    work, dead = depth(names.work_queue), depth(names.dead_letter_queue)
    return {
        "queue": name,
        "table": stores.settings.queue.table,
        "size": MailQueue(stores, name, system_clock).size(),
        "ready": work.ready if work else None,
        "unacknowledged": work.unacknowledged if work else None,
        "parked": stores.management.messages(names.park_queue),
        "deadLetters": dead.total if dead else None,
    }


def _details(opened: OpenQueue) -> dict[str, object]:
    stores, tables, name = opened.stores, opened.stores.tables, opened.queue.name
    browse = tables.browse_starts.get(name)
    content = tables.content_start(name)
    return _summary(stores, name) | {
        "configuration": shapes.configuration(opened.configuration),
        "browseStart": browse.value if browse else None,
        "contentStart": content.value if content else None,
        "delayed": _delayed(opened),
    }


def _delayed(opened: OpenQueue) -> int:
    """Delayed mails, counted by rows: delay levels keep copies of flushed and deleted mails."""
    queue = opened.queue
    rows = opened.stores.with_delays(queue.name, queue.browse())
    return sum(state.due is not None for _, state in rows)
