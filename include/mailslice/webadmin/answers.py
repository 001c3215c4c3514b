"""Answers as James' webadmin gives them: errors, dates, and shapes for the OpenAPI document."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from mailslice.model.clock import utc_text

INVALID, NOT_FOUND, SERVER_ERROR = "InvalidArgument", "notFound", "ServerError"
"""The types of errors, in James' spelling."""
ARGUMENTS = "Invalid arguments supplied in the user request"
UNEXPECTED = "WebAdmin encountered an unexpected internal error"


@dataclass(slots=True)
class Halt(Exception):
    """Ends a request with an error. `details` is None or a sentence, never a stack trace."""

    status: int
    type: str
    message: str
    details: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "statusCode": self.status,
            "type": self.type,
            "message": self.message,
            "details": self.details,
        }


def invalid(message: str, details: str | None = None) -> Halt:
    """400: the request is wrong, and why."""
    return Halt(400, INVALID, message, details)


def no_queue(name: str) -> Halt:
    """404 in James' words, which print the name as its Java class does."""
    return Halt(404, NOT_FOUND, f"MailQueueName{{value={name[:80]}}} can not be found")


def task_date(moment: datetime) -> str:
    """`yyyy-MM-dd'T'HH:mm:ss.SSSZ`, in UTC."""
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03}+0000"


def instant(moment: datetime) -> str:
    """As Java writes an Instant."""
    return utc_text(moment, "microseconds")


class ErrorJson(BaseModel):
    """Why a request was refused, or not answered."""

    statusCode: int  # noqa: N815
    type: str
    message: str
    details: str | None


class QueueJson(BaseModel):
    """One queue."""

    name: str
    size: int


class MailJson(BaseModel):
    """One mail. A null `sender` is the null sender; a null `nextDelivery`: not delayed."""

    name: str
    sender: str | None
    recipients: list[str]
    nextDelivery: str | None  # noqa: N815


class TaskIdJson(BaseModel):
    """The id of the task that a request made."""

    taskId: str  # noqa: N815


class TaskJson(BaseModel):
    """James' execution report. A date that is not known yet is absent."""

    taskId: str  # noqa: N815
    type: str
    status: str
    submittedFrom: str  # noqa: N815
    executedOn: str | None  # noqa: N815
    cancelledFrom: str | None  # noqa: N815
    additionalInformation: dict[str, Any] | None  # noqa: N815
    submitDate: str  # noqa: N815
    startedDate: str | None = None  # noqa: N815
    completedDate: str | None = None  # noqa: N815
    canceledDate: str | None = None  # noqa: N815
    cancelledDate: str | None = None  # noqa: N815
    failedDate: str | None = None  # noqa: N815
