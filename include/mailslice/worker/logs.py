"""The log of a worker's processes, on standard error: messages for people, and mail events."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Any

from mailslice.codec.shown import ShownFormatter
from mailslice.model.settings import LogFormat, LogSettings

if TYPE_CHECKING:
    from mailslice.worker.events import EventLog

TEXT = "%(asctime)s %(levelname)s %(name)s [%(process)d] %(message)s"
_CHATTY = ("cassandra", "pika", "botocore", "urllib3")


def about(action: str, enqueue_id: object = None, **facts: object) -> dict[str, object]:
    """The `extra` fields of a log message: the action, the mail's id, and further facts."""
    mail = {} if enqueue_id is None else {"enqueue_id": str(enqueue_id)}
    return {"action": action, **mail, **facts}


def configure(settings: LogSettings, level: int) -> None:
    """Replaces the handlers of the root logger by one in MAILSLICE_LOG_FORMAT."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(settings.format))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))


def formatter(log_format: LogFormat) -> logging.Formatter:
    """For messages: text, or JSON of time, level, logger, message, extras (events have `event`)."""
    if log_format is LogFormat.TEXT:
        return ShownFormatter(TEXT)
    import structlog

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            _ids_as_in_events,
            structlog.processors.JSONRenderer(),
        ],
    )


def event_log(settings: LogSettings) -> AbstractContextManager[EventLog | None]:
    """The log of mail events, closed at the end; None with MAILSLICE_LOG_EVENTS=false."""
    from mailslice.worker.events import EventLog

    return closing(EventLog()) if settings.events else nullcontext()


def _ids_as_in_events(
    _logger: object, _method: str, fields: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    if "enqueue_id" in fields:
        fields["enqueueId"] = fields.pop("enqueue_id")
    return fields
