"""One line of JSON for each thing that happens to a mail: accepted, attempt, delivered, deferred...

docs/monitoring.md lists the events and their fields. The event loop never waits for the log: a
thread writes it (ADR 80). Without an `EventLog` nothing is written: a library has no stderr.
"""

import errno
import json
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import datetime
from typing import Any

import orjson

from mailslice.model.clock import Clock, system_clock
from mailslice.model.mail import QueuedMail, QueueName

log = logging.getLogger(__name__)

_BATCH_SECONDS = 0.05
"""Seconds for which lines are collected; a killed process loses so much of its log."""
_ATOMIC = 4096
"""PIPE_BUF: bytes that a pipe takes whole, however many processes write to it."""
_FULL = {errno.EAGAIN, errno.ENOSPC, errno.EDQUOT}  # lines wait for room
_LONGEST_TEXT = 500
_MAX_ADDRESSES = 50
_RUN = r"[^\s<>()\[\]\",;:]"
_ADDRESS = re.compile(rf'(?:(?<!{_RUN}){_RUN}+|"(?:[^"\\]|\\.){{,128}}")@[^\s<>()",;:]+')
"""Matches only where such a run of characters begins: else a long run takes quadratic time."""
_MESSAGE_ID = re.compile(rb"\n?[Mm][^:]{9}:\s*(<[^<>\s]{1,250}>)")
_ANY_MESSAGE_ID = re.compile(rb"(?:\A|\n)(message-id:)", re.IGNORECASE)
_USUAL_HEADER = b"\nMessage-I"
_HEADER_ROOM = 65_536


class EventLog:
    """Writes lines to a file descriptor, in a thread, in pieces of whole lines.

    While `limit` lines wait, new ones are dropped: a log that hangs must not delay mail. `dropped`
    counts them, and a line reports them when the log goes on.
    """

    def __init__(self, descriptor: int | None = None, *, limit: int = 100_000) -> None:
        """`descriptor`: standard error by default. `limit` lines take about 50 MB."""
        self._descriptor = sys.stderr.fileno() if descriptor is None else descriptor
        self._limit = limit
        self._lines: deque[bytes] = deque()
        self._waiting = threading.Event()
        self._closed = False
        self._reported = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        if len(self._lines) >= self._limit:
            self.dropped += 1
            return
        self._lines.append(line)
        if not self._waiting.is_set():
            self._waiting.set()

    def close(self, timeout: float = 2.0) -> None:
        """Writes what waits, for `timeout` seconds at most."""
        self._closed = True
        self._waiting.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not (self._closed and not self._lines):
            if not self._closed:
                self._waiting.wait()
            if not self._closed:
                time.sleep(_BATCH_SECONDS)
            self._waiting.clear()
            with suppress(OSError):  # nobody reads it any more
                self._write_waiting()

    def _write_waiting(self) -> None:
        piece = b""
        while self._lines:
            line = self._lines.popleft() + b"\n"
            if len(piece) + len(line) > _ATOMIC:
                self._write(piece)
                piece = b""
            piece += line
        self._write(piece)
        if self.dropped > self._reported:
            lost, self._reported = self.dropped - self._reported, self.dropped
            notice = {"time": system_clock(), "event": "dropped_lines", "lines": lost}
            self._write(orjson.dumps(notice) + b"\n")

    def _write(self, piece: bytes) -> None:
        while piece:
            try:
                piece = piece[os.write(self._descriptor, piece) :]
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                time.sleep(_BATCH_SECONDS)


class MailEvents:
    """The events of one worker on one queue. Never raises: no mail waits for its log."""

    def __init__(
        self,
        queue: QueueName,
        worker: str,
        event_log: EventLog | None,
        *,
        addresses: bool = False,
        clock: Clock = system_clock,
    ) -> None:
        """`addresses`: sender and recipients are written, too (MAILSLICE_LOG_ADDRESSES)."""
        self._addresses = addresses
        self._clock = clock
        self._log = event_log
        self._origin = {"queue": queue, "worker": worker}

    @property
    def enabled(self) -> bool:
        """Whether events are written. If not, callers do not compute what only an event needs."""
        return self._log is not None

    def emit(self, event: str, item: QueuedMail | None, **fields: object) -> None:
        """Writes one event. `item` None: of a message that is no mail. Leaves out fields that are
        None or empty; redacts `why` and `answer`.
        """
        if self._log is None:
            return
        try:
            first = {"time": self._clock(), "event": event, **self._origin}
            self._log.put(_line({**first, **self._of(item), **_shown(fields)}))
        except Exception:
            log.exception("an event was not written", extra={"action": "event_fault"})

    def _of(self, item: QueuedMail | None) -> dict[str, object]:
        if item is None:
            return {}
        mail = item.mail
        fields: dict[str, object] = {"enqueueId": item.enqueue_id, "name": mail.name}
        fields["recipients"] = len(mail.recipients)
        if self._addresses:
            fields |= {"from": mail.sender or "", "to": mail.recipients[:_MAX_ADDRESSES]}
        return fields


def redacted(text: str) -> str:
    """The text in one line, at most 500 characters, with `***` for whatever looks like an address.

    A local part alone is not recognised. Half of a surrogate pair, which no store keeps, is `?`.
    """
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return (_ADDRESS.sub("***", line) if "@" in line else line)[:_LONGEST_TEXT]


def message_id_of(content: bytes | memoryview) -> str | None:
    """The Message-ID of a mail's header, with its angle brackets; None where there is none."""
    block = content if isinstance(content, bytes) else bytes(content[:_HEADER_ROOM])
    start = block.find(_USUAL_HEADER, 0, _HEADER_ROOM)
    match = _MESSAGE_ID.match(block, start) if start >= 0 and _in_header(block, start) else None
    if match is None:  # other spelling, first line, or after a header like Message-Info
        other = _ANY_MESSAGE_ID.search(block, 0, _HEADER_ROOM)
        if other is not None and _in_header(block, other.start()):
            match = _MESSAGE_ID.match(block, other.start(1))
    return None if match is None else match[1].decode("ascii", "replace")


def _in_header(block: bytes, position: int) -> bool:
    end = position + 1
    return block.find(b"\n\r\n", 0, end) < 0 and block.find(b"\n\n", 0, end) < 0


def _shown(fields: dict[str, object]) -> dict[str, object]:
    return {
        name: redacted(str(value)) if name in {"why", "answer"} else value
        for name, value in fields.items()
        if value is not None and value != ""
    }


def _line(fields: dict[str, Any]) -> bytes:
    """A line below 4,096 bytes: the longest text or list is halved until it fits."""
    while len(line := _json(fields)) >= _ATOMIC:
        longest = max(fields, key=lambda name: len(_json({name: fields[name]})))
        fields[longest] = fields[longest][: len(fields[longest]) // 2]
    return line


def _json(fields: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_UTC_Z)
    except TypeError:  # half of a surrogate pair in a name: orjson refuses what is no UTF-8
        return json.dumps(fields, default=_plain).encode()


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
