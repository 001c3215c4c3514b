"""`mailslice postal`: stuck mail of a Postal, in place, on its own MariaDB."""

from datetime import UTC, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

from mailslice.cli.arguments import duration, option
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.queue_session import open_stores
from mailslice.model.clock import system_clock, utc_text
from mailslice.model.durations import format_duration

if TYPE_CHECKING:
    from mailslice.duties.stuck_mails_postal.survey import PostalSurvey, SurveyedRow

app = group("Postal: queued messages whose worker died, lost ones, and those set aside.")

LockTimeout = Annotated[
    timedelta | None,
    option(
        "--lock-timeout DURATION",
        "A message locked for longer is stuck: 90s, 15m. MAILSLICE_POSTAL_LOCK_TIMEOUT when not "
        "given, else 10 times the p99 of what sending takes, at least 10m.",
        partial(duration, minimum=timedelta(milliseconds=1)),
    ),
]
_COLUMNS = (
    *("queuedMessage", "server", "message", "state", "stage", "age", "attempts"),
    *("lockedBy", "lockedAt", "rcptTo", "domain"),
)


@command(app, "stuck")
def stuck(out: Output, *, lock_timeout: LockTimeout = None) -> None:
    """Queued messages that no worker will finish, or whose message is gone. Changes nothing.

    The oldest lock comes first. A server that cannot be read in full is named on stderr, and its
    unreadable messages are listed as unknown.
    """
    from mailslice.duties.stuck_mails_postal.survey import survey

    with open_stores() as stores:
        result = survey(stores.postal, lock_timeout)
        for server, why in sorted(result.unreadable.items()):
            out.note(f"server {server} cannot be read in full: {why}")
        if not out.as_json:
            out.note(_sentence(result))
        rows = (_as_row(row, out.as_json) for row in result.rows)
        out.rows(rows, _COLUMNS, empty="no queued message is stuck")


@command(app, "health")
def health(out: Output) -> None:
    """The health of Postal's queue in one word, by the last runs of stuck_mails_postal.

    Postal itself is not asked. Where the ledger does not answer it is UNKNOWN, and the exit code 4.
    """
    from mailslice.maintenance.postal_health import as_json, postal_overview

    with open_stores() as stores:
        stores.postal  # noqa: B018 - names the setting where it is missing
        overview = postal_overview(stores, system_clock)
    out.one(as_json(overview))
    if overview.unanswered is not None:
        raise overview.unanswered


def _sentence(result: "PostalSurvey") -> str:
    """How many messages are queued, the lock time-out, and what it follows from."""
    p99 = "no sending was measured"
    if result.p99 is not None:
        p99 = f"the p99 of sendings is {result.p99.total_seconds():g}s"
    return (
        f"{result.queued} messages are queued; the lock time-out is "
        f"{format_duration(timedelta(seconds=round(result.lock_timeout.total_seconds())))}, {p99}"
    )


def _as_row(surveyed: "SurveyedRow", as_json: bool) -> dict[str, object]:
    row, message, age = surveyed.row, surveyed.message, surveyed.age
    locked = row.locked_at and utc_text(row.locked_at.replace(tzinfo=UTC), "microseconds")
    seconds = None if age is None else age.total_seconds()
    return {
        "queuedMessage": row.id,
        "server": row.server,
        "message": row.message,
        "lockedBy": row.locked_by,
        "lockedAt": locked,
        "age": seconds if as_json or age is None else _rounded(age),
        "attempts": row.attempts,
        "rcptTo": None if message is None else message.rcpt_to,
        "domain": row.domain,
        "state": surveyed.state,
        "stage": surveyed.stage,
    }


def _rounded(age: timedelta) -> str:
    """The age in whole minutes, below ten minutes in whole seconds."""
    unit = timedelta(minutes=1) if age >= timedelta(minutes=10) else timedelta(seconds=1)
    return format_duration(age // unit * unit)
