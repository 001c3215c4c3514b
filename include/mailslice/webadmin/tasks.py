"""Tasks: the request for one, its state, and the protocol of what runs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from mailslice.actions.request import MAIL_ACTIONS
from mailslice.webadmin.answers import task_date


class TaskType(StrEnum):
    """James' names of the types."""

    CLEAR = "clear-mail-queue"
    DELETE = "delete-mails-from-mail-queue"
    BROWSE_START = "browse-start-update"
    REPUBLISH = "republish-not-processed-mails"
    BLOB_GC = "BlobGCTask"
    COUNTERS = "recompute-mailbox-counters"


class Status(StrEnum):
    """James' names of the statuses."""

    WAITING = "waiting"
    IN_PROGRESS = "inProgress"
    CANCEL_REQUESTED = "canceledRequested"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether it never changes any more."""
        return self in {Status.COMPLETED, Status.CANCELED, Status.FAILED}


DUTIES = {
    TaskType.BROWSE_START: "queue_cleanup",
    TaskType.BLOB_GC: "blob_gc",
    TaskType.COUNTERS: "counter_repair",
}
"""The duty that does a task of the type. Deletes run no duty, a republish runs two."""
_FIGURES = {
    TaskType.REPUBLISH: ("nbRequeuedMails",),
    TaskType.BLOB_GC: ("referenceSourceCount", "blobCount", "gcedBlobCount", "errorCount"),
    TaskType.COUNTERS: ("processedMailboxes",),
}


def dag_name(type_: TaskType) -> str:
    """The DAG, without prefix, whose runs do tasks of the type inside Airflow."""
    return DUTIES.get(type_, MAIL_ACTIONS)


def figures(type_: TaskType, report: Mapping[str, Any]) -> dict[str, Any]:
    """James' figures of the work, from the report of the duty; zeros while that is empty."""
    numbers: dict[str, Any] = {name: report.get(name) or 0 for name in _FIGURES.get(type_, ())}
    if type_ is TaskType.COUNTERS:
        numbers["failedMailboxes"] = sorted(report.get("failures") or ())
    return numbers | ({"run": report["run"]} if report else {})


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """What is to be done. `params` are JSON values, checked by the route."""

    id: UUID
    type: TaskType
    queue: str | None
    who: str
    submitted: datetime
    params: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None

    @property
    def run(self) -> str:
        """The run id, in the ledger, of the duty that does it."""
        return f"webadmin-{self.id}"


@dataclass(frozen=True, slots=True)
class Task:
    """A task at a moment. `information`: James' additionalInformation, None before there is any.

    `started` is None while it waits; `ended` until the status is final.
    """

    id: UUID
    type: TaskType
    status: Status
    submitted: datetime
    submitted_from: str
    started: datetime | None = None
    ended: datetime | None = None
    executed_on: str | None = None
    canceled_from: str | None = None
    information: Mapping[str, Any] | None = None

    def ended_as(self, status: Status) -> datetime | None:
        """When it ended, if it ended with this status."""
        return self.ended if self.status is status else None

    def as_json(self) -> dict[str, Any]:
        """James' execution report. Dates that are not known yet are absent, as in James' answers.

        James' documents write `cancelledDate`, its code `canceledDate`: both are given.
        """
        canceled = self.ended_as(Status.CANCELED)
        dates = {
            "startedDate": self.started,
            "completedDate": self.ended_as(Status.COMPLETED),
            "canceledDate": canceled,
            "cancelledDate": canceled,
            "failedDate": self.ended_as(Status.FAILED),
        }
        return {
            "additionalInformation": self.information,
            "status": self.status.value,
            "submittedFrom": self.submitted_from,
            "executedOn": self.executed_on,
            "cancelledFrom": self.canceled_from,
            "taskId": str(self.id),
            "submitDate": task_date(self.submitted),
            "type": self.type.value,
            **{name: task_date(date) for name, date in dates.items() if date is not None},
        }


class Tasks(Protocol):
    """Runs the tasks. Each method may block for as long as a store takes to answer."""

    poll_seconds: float
    """Seconds between two reads of a task that a request awaits."""

    def submit(self, request: TaskRequest) -> None:
        """Queue a task. Raises Refused when too many wait."""

    def get(self, task: UUID) -> Task | None:
        """The task; None when there is none."""

    def newest(self) -> Sequence[Task]:
        """The last thousand, the newest first. Older ones may lack the figures of their work."""

    def cancel(self, task: UUID) -> None:
        """A waiting task does not begin; a running one ends before its next change. Others stay."""
