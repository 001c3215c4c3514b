"""Step 5: what was in flight, what was stuck, what was decided, for the ledger and for people."""

from __future__ import annotations

from typing import Any

from mailslice.duties.stuck_mails.apply import PROGRESS
from mailslice.duties.stuck_mails.verdicts import Action
from mailslice.duty.artifacts import RunFolder
from mailslice.duty.context import FILES, StepContext
from mailslice.duty.report import DONE, DRY_RUN, FAILED, NOTHING

_PLANNED = (
    *(
        "planDigest",
        "planned",
        "mode",
        "lockTimeout",
        "lockTimeoutSeconds",
        "lockTimeoutGiven",
        "p99Seconds",
        "measured",
        "factor",
        "atLeast",
        "inFlight",
    ),
    *("waitingForHandler", "alreadyMarked", "workers", "oldestSeconds"),
)
_APPLIED = (
    "applied",
    "skipped",
    "skippedBy",
    "left",
    "noted",
    "discardedRecords",
    "errors",
    "errorCount",
    "finishedOfEarlierRuns",
)
_SHOWN = 200
_NOTED = 1000
"""In shadow mode, where the report is all that tells: `stuck list` shows these."""


def run(context: StepContext) -> dict[str, Any]:
    """The report's own fields. `failed`: mails that were being sent, decided to have failed; `errorCount`: mails that could not be acted on."""
    found = partial(context.folder)
    alert = _alert(found, context.settings.duty.stuck_alert_from)
    status, message = _outcome(context)
    unswept = (context.summary("apply") or {}).get("unswept")
    return {
        **found,
        "status": status,
        "message": "; ".join(part for part in (message, alert, unswept) if part),
        "alert": alert,
    }


def partial(folder: RunFolder) -> dict[str, Any]:
    """The fields as far as the run came."""
    plan = folder.read_json(FILES["plan"]) or {}
    applied = folder.read_json(FILES["apply"]) or folder.read_json(PROGRESS) or {}
    verified = folder.read_json(FILES["verify"]) or {}
    planned = plan.get("decided", {}).get("mails", [])
    decisions = applied.get("decisions", [] if applied else planned)
    return {
        "inFlight": 0,
        **{
            action.value: applied.get(action.value, 0) if not applied.get("noted") else 0
            for action in Action
        },
        "discardedRecords": 0,
        "left": 0,
        "errorCount": 0,
        **{name: plan[name] for name in _PLANNED if name in plan},
        **{name: applied[name] for name in _APPLIED if name in applied},
        "bytes": sum(each.get("bytes", 0) for each in decisions),
        "mails": decisions[: _NOTED if applied.get("noted") else _SHOWN],
        "quarantined": verified.get("waiting"),
    }


def _alert(found: dict[str, Any], unusual: int) -> str | None:
    """What is unusual; None when nothing is."""
    planned = int(found.get("planned", 0))
    if planned >= unusual:
        return f"unusual: {planned} mails are stuck in one run, {unusual} are (MAILSLICE_DUTY_STUCK_ALERT_FROM): look at the handler and what it talks to"
    return None


def _outcome(context: StepContext) -> tuple[str, str]:
    """The status, and what happened in words."""
    plan, applied = context.need("plan"), context.summary("apply")
    timeout = f"the lock timeout of {plan['lockTimeout']}"
    p99 = (
        "no mail was measured" if plan["p99Seconds"] is None else f"p99 is {plan['p99Seconds']:g} s"
    )
    seen = f"{plan['inFlight']} in flight, {plan['planned']} beyond {timeout} ({p99})"
    if context.given.dry_run:
        return DRY_RUN, f"dry run, nothing was changed: {seen}"
    if applied is None:
        return FAILED, f"apply did not end; the next run finishes it: {seen}"
    if applied["errorCount"]:
        return (
            FAILED,
            f"{applied['errorCount']} of {applied['planned']} stuck mails could not be acted on, such as {applied['errors'][0]}",
        )
    if context.summary("verify") is None:
        return (
            FAILED,
            f"verify did not end: what apply did is in the numbers, it was not checked: {seen}",
        )
    if applied["noted"]:
        return DONE, f"shadow mode, nothing was changed: {seen}"
    done = ", ".join(
        f"{applied[action.value]} {action.value}" for action in Action if applied[action.value]
    )
    if applied["discardedRecords"]:
        done = ", ".join(
            part
            for part in (done, f"{applied['discardedRecords']} records of dead workers discarded")
            if part
        )
    left = f"; {applied['left']} are left to the next run" if applied["left"] else ""
    return (DONE if done else NOTHING), f"{seen}: {done or 'nothing to do'}{left}"
