"""Shapes of answers, for the OpenAPI document. Names of fields are James'."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


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
    """One mail. `sender` null is the null sender; `nextDelivery` null is: not delayed."""

    name: str
    sender: str | None
    recipients: list[str]
    nextDelivery: str | None  # noqa: N815


class TaskIdJson(BaseModel):
    """The id of the task that a request made."""

    taskId: str  # noqa: N815


class TaskJson(BaseModel):
    """James' execution report. Dates that are none are absent."""

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
