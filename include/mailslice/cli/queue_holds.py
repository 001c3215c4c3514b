"""`mailslice queue hold`, `release` and `holds`: the workers leave a queue, or domains, alone."""

from datetime import timedelta
from functools import partial
from typing import Annotated

from mailslice.cli.arguments import Queue, Reason, duration, option, queue_argument
from mailslice.cli.command import command
from mailslice.cli.output import Output
from mailslice.cli.queue_moves import app
from mailslice.cli.queue_session import open_stores, record, who
from mailslice.model.clock import system_clock
from mailslice.model.holds import APPLIES_TO
from mailslice.model.mail import QueueName

__all__ = ["app"]

_COLUMNS = ("queue", "domain", "since", "until", "who", "reason", "seenBy", "workers")

Domains = Annotated[
    list[str] | None,
    option(
        "--domain DOMAIN",
        "Recipient domain, exactly; give it several times for several. All, when not given.",
    ),
]


@command(app, "hold")
def hold(
    out: Output,
    queue: Queue,
    *,
    domain: Domains = None,
    lasts: Annotated[
        timedelta | None,
        option(
            "--for DURATION",
            "It ends by itself after that: 30m, 2h. Until a release, when not given.",
            partial(duration, minimum=timedelta(seconds=1)),
        ),
    ] = None,
    reason: Reason = None,
) -> None:
    """Tell mailslice's workers to leave a queue, or mails to a domain, alone. A reason is required.

    They obey within 10 s; mails in handlers come to their end. James' consumers are not affected.
    """
    from mailslice.admin import holds

    with open_stores() as stores:
        made = holds.hold(
            stores,
            queue,
            system_clock,
            who=who(),
            reason=reason or "",
            domains=domain or (),
            lasts=lasts,
        )
        about = {"domains": sorted(entry.domain for entry in made if entry.domain)}
        record(stores.settings, "queue hold", queue, reason, until=made[0].until, **about)
        states = holds.holds(stores, system_clock, queue)
        out.note(f"the hold applies to {APPLIES_TO}")
        out.rows((state.as_json() for state in states if state.hold in made), _COLUMNS)


@command(app, "release")
def release(out: Output, queue: Queue, *, domain: Domains = None, reason: Reason = None) -> None:
    """End the hold of a queue, or the holds of domains of it; the other holds stay.

    Workers go on within 10 s. Mails of a domain come back within 4 minutes; 'queue retry --domain'
    brings them now.
    """
    from mailslice.admin import holds

    with open_stores() as stores:
        ended = holds.release(stores, queue, system_clock, domains=domain or ())
        domains = sorted(one.domain for one in ended if one.domain)
        record(stores.settings, "queue release", queue, reason, holds=len(ended), domains=domains)
        remaining = holds.active_holds(stores, system_clock, queue)
        for one in remaining[queue].all if queue in remaining else ():
            out.note(f"still held: {one.sentence}; {one.release}")
        out.one({"queue": queue, "released": len(ended), "domains": domains})


@command(app, "holds")
def holds_(
    out: Output,
    queue: Annotated[QueueName | None, queue_argument("[QUEUE]", "Of this queue only.")] = None,
) -> None:
    """What is held, by whom, until when, why, and how many of the queue's workers know it."""
    from mailslice.admin import holds

    with open_stores() as stores:
        rows = (state.as_json() for state in holds.holds(stores, system_clock, queue))
        out.rows(rows, _COLUMNS, empty="nothing is held")
        out.note(f"holds are for {APPLIES_TO}")
