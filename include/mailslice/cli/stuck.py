"""`mailslice stuck`: mails whose worker hung, and what a person decides about them."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from mailslice.cli.arguments import Queue, Reason, Yes, option
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.queue_session import OpenQueue, confirm, may_ask, open_queue, record, who
from mailslice.cli.selection import FilterCommand
from mailslice.codec.shown import shown
from mailslice.model.clock import system_clock
from mailslice.model.command_line import command_line
from mailslice.model.errors import BadInput, MailsliceError, SomeFailed

if TYPE_CHECKING:
    from mailslice.stores.cassandra.own import QuarantinedMail

app = group("Stuck mails in quarantine: list them, release them into the queue, discard them.")

_COLUMNS = (
    *("enqueueId", "name", "stage", "worker", "since", "action"),
    *("finished", "content", "why"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionOptions:
    """The options of a release and of a discard."""

    name: Annotated[str | None, option("--name NAME", "Name of the mail.")] = None
    every: Annotated[bool, option("--all", "Every mail that is in quarantine.")] = False
    yes: Yes = False
    reason: Reason = None


@command(app, "list")
def list_(out: Output, queue: Queue) -> None:
    """Quarantined mails that wait for a person; in shadow mode, what would be done."""
    with open_queue(queue) as opened:
        rows = [*map(_as_row, _quarantined(opened)), *_noted(opened)]
        out.rows(iter(rows), _COLUMNS, empty=f"no mail of {queue} is stuck")


@command(app, "release", FilterCommand)
def release(out: Output, queue: Queue, *, options: DecisionOptions) -> None:
    """Enqueue mails of the quarantine anew, each once, with a new id and fresh content.

    --all leaves mails that their worker has completed in the meantime: release them by name.
    """
    _decide(out, queue, "release", options)


@command(app, "discard", FilterCommand)
def discard(out: Output, queue: Queue, *, options: DecisionOptions) -> None:
    """Remove mails and their content from the quarantine. They cannot be brought back.

    At a terminal `--all` asks first; a script is not asked.
    """
    _decide(out, queue, "discard", options)


def _decide(out: Output, queue: str, doing: str, options: DecisionOptions) -> None:
    """Acts on the mails in turn. Raises SomeFailed at the end; a store that is away ends it."""
    from mailslice.actions.perform import StuckMailDecision
    from mailslice.admin.quarantine import Quarantine

    name, every, reason = options.name, options.every, options.reason
    if (name is None) == (not every):
        raise BadInput(f"stuck {doing}: give either --name NAME or --all")
    with open_queue(queue, create=True) as opened:
        mails = _requested(opened, name, doing)
        if not mails:
            out.note(f"no mail of {queue} is in quarantine")
            return
        discards = doing == "discard"
        if discards and every and may_ask(options.yes):
            size = sum(mail.size for mail in mails)
            confirm(f"Remove {len(mails)} quarantined mails of {queue} for good, {size} bytes?")
        quarantine = Quarantine(opened.stores, opened.queue.name, system_clock)
        decision = StuckMailDecision(quarantine, discards, reason or "by hand", who())
        done, failures = 0, []
        try:
            for mail in mails:
                outcome: dict[str, Any]
                if not discards and every and mail.finished is not None:
                    when = f"{mail.finished:%Y-%m-%d %H:%M:%S} UTC"
                    why = f"its worker completed it after all, seen at {when} (except for "
                    why += "recipients in doubt, which its why names); release it by --name"
                    word, outcome = "left", {"newEnqueueId": None, "skipped": why}
                else:
                    decided = decision.apply(mail)
                    if isinstance(decided, MailsliceError):
                        word, why, outcome = "failed", str(decided), {"error": str(decided)}
                        failures.append(why)
                    else:
                        done += bool(decided)  # false: somebody else was faster
                        word, why, outcome = "discarded", "gone", {"discarded": decided}
                        if not discards:
                            word, why = "released", f"now {decided}"
                            outcome = {"newEnqueueId": decided}
                ids = {"enqueueId": mail.enqueue_id, "name": mail.name}
                sentence = f"{word}  {mail.enqueue_id}  {shown(mail.name)}  {shown(why)}"
                out.line(ids | outcome, sentence)
        finally:
            if done:
                record(opened.settings, f"stuck {doing}", queue, reason, mails=done)
    if failures:
        raise SomeFailed(
            f"{len(failures)} of {len(mails)} mails: stuck {doing} failed, such as: {failures[0]}"
        )


def _quarantined(opened: OpenQueue) -> "list[QuarantinedMail]":
    from mailslice.admin.quarantine import in_quarantine

    return in_quarantine(opened.stores, opened.queue.name, system_clock)


def _noted(opened: OpenQueue) -> "list[dict[str, object]]":
    """What the last run in shadow mode would do, in the shape of `_as_row`."""
    from mailslice.duties.stuck_mails.mails import Action
    from mailslice.duties.stuck_mails.work import shadow_report_mails
    from mailslice.stores.cassandra.own import QuarantineTable

    if QuarantineTable.existing(opened.stores.cassandra, opened.settings) is None:
        return []
    return [
        {
            **mail,
            "since": datetime.fromisoformat(mail["since"]),
            "action": Action(str(mail["action"])).would,
            "state": "noted",
            "decided": datetime.fromisoformat(mail["decided"]),
            "finished": None,
        }
        for mail in shadow_report_mails(opened.stores, opened.queue.name)
    ]


def _requested(opened: OpenQueue, name: str | None, doing: str) -> "list[QuarantinedMail]":
    """The mails to decide about. Raises BadInput when there is no mail of that name."""
    mails = [mail for mail in _quarantined(opened) if name is None or mail.name == name]
    if name is not None and not mails:
        why = (
            "its worker has it: shadow mode sets nothing aside"
            if any(mail["name"] == name for mail in _noted(opened))
            else f"allowed are those that `{command_line('stuck list', opened.queue.name)}` shows"
        )
        raise BadInput(
            f"stuck {doing}: {opened.queue.name} has no mail --name {name!r} in quarantine; {why}"
        )
    return mails


def _as_row(mail: "QuarantinedMail") -> dict[str, object]:
    return {
        "enqueueId": mail.enqueue_id,
        "name": mail.name,
        "stage": mail.stage,
        "worker": mail.worker,
        "since": mail.since,
        "action": mail.action,
        "ageSeconds": mail.age.total_seconds(),
        "attempt": mail.attempt,
        "state": mail.state,
        "why": mail.why,
        "decided": mail.decided,
        "who": mail.who,
        "run": mail.run,
        "content": "content lost" if mail.content == "lost" else mail.content,
        "bytes": mail.size,
        "finished": mail.finished,
    }
