"""The task `approve` between check and apply: a person says yes, or nothing is applied (ADR 77).

No answer within `approve_within` is no. A no ends the run as `refused`, never as a success.
Apply checks again: an answer does not cover a plan that was made after the question or the answer.
Airflow shows the first question of a task in all its tries, so a run asks about one plan only.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator

from mailslice.airflow.dag_duty import DagDuty, final_errors
from mailslice.airflow.run_request import request_of
from mailslice.airflow.versions import AirflowFailException
from mailslice.maintenance.artifacts import APPROVAL, FILES, RunFolder, folder_of, iso
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.model.durations import format_duration
from mailslice.model.errors import Refused
from mailslice.model.settings import Settings

_NOT_FIGURES = {"decided", "shape"}
_CHECKSUMS = {"total", "xor"}


class ApproveStep(ApprovalOperator):
    """Asks a person about the plan of one queue, where the run is to ask."""

    template_fields: Sequence[str] = ("mail_queue",)

    def __init__(self, *, dag_duty: DagDuty, mail_queue: Any, **kwargs: Any) -> None:
        self.dag_duty = dag_duty
        self.mail_queue = mail_queue
        super().__init__(
            subject=f"Apply the plan of {dag_duty.duty}?",
            defaults=ApprovalOperator.REJECT,
            response_timeout=dag_duty.wait,
            map_index_template="{{ task.mail_queue }}",
            **kwargs,
        )

    def execute(self, context: Any) -> Any:
        """Ask, unless the run is dry, no param or setting asks, or the plan changes nothing."""
        duty, wait = self.dag_duty, self.dag_duty.wait
        with final_errors():
            if not duty.asks(context):
                self.log.info("not asked: a dry run, or neither `approve` nor the settings want it")
                return None
            request, settings = request_of(context, duty.duty, self.mail_queue), duty.ready()
            summary = plan_with_work(request, settings)
            if summary is None:
                self.log.info("not asked: the plan changes nothing")
                return None
            # Clearing a task raises its `max_tries`.
            cleared = (getattr(context.get("ti"), "max_tries", None) or 0) > self.retries
            if not note_question(folder_of(request, settings), summary, is_cleared=cleared):
                why = "Airflow may still show the question about an earlier plan of this run"
                raise _refusal(f"{why}: start a new run", request, settings)
        queue = "" if request.queue == NO_QUEUE else f" of queue {request.queue!r}"
        self.subject = f"{duty.prefix}{duty.duty}: apply the plan{queue}?"
        self.body = question(summary, wait)
        return super().execute(context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> str:
        """Store an approval. End the run as refused after a rejection, or without an answer."""
        # The base class would skip the next task, and the run would be a success.
        answer = super(ApprovalOperator, self).execute_complete(context, event)
        request = request_of(context, self.dag_duty.duty, self.mail_queue)
        settings = self.dag_duty.ready()
        user = answer.get("responded_by_user") or {}
        by = str(user.get("name") or user.get("id") or "")
        if by and answer["chosen_options"] == [ApprovalOperator.APPROVE]:
            folder = folder_of(request, settings)
            asked = folder.read_json(APPROVAL) or {"planDigest": None}
            folder.write_json(APPROVAL, {**asked, "by": by, "at": iso(datetime.now(UTC))})
            return by
        why = f"rejected by {by}" if by else f"no answer in {format_duration(self.dag_duty.wait)}"
        raise _refusal(why, request, settings)


def _refusal(why: str, request: RunRequest, settings: Settings) -> Exception:
    """The error that ends the task; the run is recorded as refused."""
    from mailslice.maintenance.runner import record_refusal

    refusal = Refused(f"not approved, nothing was applied: {why}")
    record_refusal("approve", refusal, request, settings)
    return AirflowFailException(str(refusal))


def require_approval(request: RunRequest, settings: Settings) -> None:
    """Raises Refused unless a person said yes to the plan as it is now, or it changes nothing."""
    plan = plan_with_work(request, settings)
    answer = folder_of(request, settings).read_json(APPROVAL) or {}
    if plan is not None and (not answer.get("by") or answer["planDigest"] != plan["planDigest"]):
        raise Refused(f"nobody approved the plan of run {request.run}: start a new run")


def note_question(folder: RunFolder, plan: Mapping[str, Any], *, is_cleared: bool = False) -> bool:
    """Store which plan a person is shown. False if Airflow may show an older question."""
    asked = folder.read_json(APPROVAL) or ({} if is_cleared else plan)
    if asked.get("planDigest") != plan["planDigest"]:
        return False
    folder.write_json(APPROVAL, {"planDigest": plan["planDigest"]})
    return True


def plan_with_work(request: RunRequest, settings: Settings) -> dict[str, Any] | None:
    """The summary of the run's plan; None when there is nothing to apply. Raises Refused."""
    from mailslice.maintenance.plan import read_plan
    from mailslice.maintenance.registry import load

    summary = folder_of(request, settings).read_json(FILES["plan"])
    if summary is None:
        raise Refused(f"run {request.run} has no plan: start a new run")
    logic = load(request.duty).logic
    plan = read_plan(summary, logic.plan_type, request.run, request.reported_queue)
    return summary if plan.has_work else None


def question(summary: Mapping[str, Any], wait: timedelta) -> str:
    """The plan's sentence and figures as Markdown, and what a yes, a no and no answer do."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in figures(summary))
    return (
        f"{summary.get('message', '')}\n\n| figure | value |\n|---|---|\n{rows}\n\n"
        "Approve: this plan is applied, each item of it proved again. Reject, or no answer within "
        f"{format_duration(wait)}: nothing is applied, and the run ends as refused."
    )


def figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The counts of a plan that are not 0: numbers, rows of files, lengths of lists. No text of
    mails, no times and no checksums.
    """
    for name, value in {**summary.get("decided", {}), **summary}.items():
        if name in _NOT_FIGURES:
            continue
        if isinstance(value, Mapping):
            parts = {"": value["rows"]} if "rows" in value else value
        else:
            parts = {"": len(value) if isinstance(value, list) else value}
        for part, count in parts.items():
            if type(count) is int and count and part not in _CHECKSUMS:
                yield f"{name}.{part}" if part else name, count
