"""`mailslice report`: what runs of duties did, from the ledger."""

from typing import Annotated

import typer

from mailslice.cli.arguments import Limit, option, queue_option
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.queue_session import open_stores
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.registry import load
from mailslice.model.errors import BadInput
from mailslice.model.mail import QueueName

app = group("Reports of duty runs.")

Duty = Annotated[
    str | None,
    option("--duty DUTY", "Only runs of this duty.", lambda text, **_: load(text).name),
]
OfQueue = Annotated[QueueName | None, queue_option("Only runs on this queue.")]
_COLUMNS = tuple("run duty queue status started planned applied skipped failed who".split())


@command(app, "last")
def last(out: Output, *, duty: Duty = None, queue: OfQueue = None) -> None:
    """The newest report."""
    with open_stores() as stores:
        row = Ledger(stores, stores.settings).last(duty, queue)
        if row is None:
            raise BadInput(
                f"report last: there is no run{_scope(duty, queue)}; 'mailslice report list' "
                "shows all, 'mailslice duty run' makes one"
            )
        out.one(row)


@command(app, "list")
def list_(out: Output, *, duty: Duty = None, queue: OfQueue = None, limit: Limit = 20) -> None:
    """The newest reports, newest first."""
    with open_stores() as stores:
        out.rows(
            Ledger(stores, stores.settings).list(duty, queue, limit or 20),
            _COLUMNS,
            empty=f"there is no run{_scope(duty, queue)}",
        )


@command(app, "show")
def show(
    out: Output,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run id, as report list shows it.")],
) -> None:
    """One report."""
    with open_stores() as stores:
        out.one(Ledger(stores, stores.settings).show(run))


def _scope(duty: str | None, queue: str | None) -> str:
    return (f" of {duty}" if duty else "") + (f" on queue {queue}" if queue else "")
