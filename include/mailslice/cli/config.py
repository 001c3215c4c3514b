"""`mailslice config`: the stored configuration of the queue view and that of the settings."""

from typing import Annotated, Any

import typer

from mailslice.cli import shapes
from mailslice.cli.arguments import Reason
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.queue_session import open_stores, record
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput
from mailslice.stores import Stores, has_cassandra
from mailslice.view import sharing

app = group("Configuration of the view: the stored one wins over the settings.")

SAME = "same"
NOTHING_STORED = "nothing stored: the first start stores the wanted one"
APPLICABLE = "differs: config apply stores the wanted one"
REFUSED = "differs: config apply would be refused"
STRATEGY = "the blob strategy differs from the one James recorded"


@command(app, "show")
def show(out: Output) -> None:
    """The stored configuration, the requested one, and the verdict."""
    with open_stores() as stores:
        out.one(_comparison(stores))


@command(app, "check")
def check(out: Output) -> None:
    """Like show, with the delivery limit of each queue of RabbitMQ, what happens to a mail that
    exceeds it, and the command that lifts it.

    With MAILSLICE_POSTAL_URL it also checks Postal's MariaDB: its tables, every grant, mailslice's
    own database and the artifacts. It changes nothing in a database.

    Ends with 1 when the configuration differs, RabbitMQ may lose a mail (unsafeQueues), or a check
    that the Postal mode needs fails.
    """
    with open_stores() as stores:
        postal: dict[str, Any] = {}
        if stores.settings.postal.url is not None:
            from mailslice.cli.postal_check import postal_checks

            postal = {"postal": postal_checks(stores, system_clock)}
        postal_fails = bool(postal) and not postal["postal"]["ok"]
        if not has_cassandra(stores.settings):
            out.one({**postal, "source": stores.settings.source})
            raise typer.Exit(int(postal_fails))
        comparison = _comparison(stores)
        limits = map(shapes.queue_limit, stores.rabbitmq.delivery_limits())
        unsafe = stores.rabbitmq.unsafe_queues()
    out.one(comparison | {"queues": list(limits), "unsafeQueues": unsafe} | postal)
    if comparison["verdict"] not in (SAME, NOTHING_STORED) or unsafe or postal_fails:
        raise typer.Exit(1)


@command(app, "apply")
def apply(out: Output, reason: Reason = None) -> None:
    """Store the requested configuration. It asks no question.

    Refused, as by James, for fewer buckets and for a window that does not divide the stored one.
    """
    from mailslice.view.configuration import ConfigurationGuard

    with open_stores() as stores:
        guard = ConfigurationGuard(stores.tables, stores.settings)
        before = guard.stored()
        applied = guard.apply()
        if applied:
            stored, requested = map(shapes.configuration, (before, guard.stored()))
            record(stores.settings, "config apply", None, reason, stored=stored, wanted=requested)
        out.one(_comparison(stores) | {"applied": applied})


@command(app, "shared")
def shared(
    out: Output,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="[true|false]",
            help="The answer to store. Without it the command only shows.",
            show_default=False,
        ),
    ] = None,
    reason: Reason = None,
) -> None:
    """Show or store whether James works on the queues, too.

    Refused while a worker has the other value; to true also while a mail waits or a cleanup runs.
    """
    if value not in {None, "true", "false"}:
        raise BadInput(f"config shared {value!r}: allowed are true and false")
    with open_stores() as stores:
        changed = value is not None and sharing.change(stores, shared=value == "true")
        if changed:
            record(stores.settings, "config shared", None, reason, shared=value == "true")
        stored = sharing.stored(stores)
        item = {"shared": stored is not False, "stored": stored}
        item |= {"wanted": sharing.configured(stores.settings), "changed": changed}
        out.one(item | {"source": stores.settings.source})


def _comparison(stores: Stores) -> dict[str, object]:
    from mailslice.view.configuration import ConfigurationGuard

    comparison = ConfigurationGuard(stores.tables, stores.settings).check()
    if comparison.stored is None:
        verdict = NOTHING_STORED
    elif comparison.stored != comparison.requested:
        verdict = REFUSED if comparison.why_refused else APPLICABLE
    else:
        verdict = SAME if comparison.same_strategy else STRATEGY
    return {
        "stored": shapes.configuration(comparison.stored),
        "wanted": shapes.configuration(comparison.requested),
        "verdict": verdict,
        "why": comparison.why_refused,
        "recordedBlobStrategy": comparison.recorded_strategy,
        "blobStrategy": comparison.strategy,
        "source": stores.settings.source,
    }
