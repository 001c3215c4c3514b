"""`mail enqueue`: many mails in flight, few in memory; failures are listed at the end."""

import asyncio
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from mailslice.cli import shapes
from mailslice.cli.output import NoRoomError, Output
from mailslice.cli.streams import StoppedError, stoppable
from mailslice.codec.addresses import NULL_SENDER
from mailslice.codec.files import STDIN, FoundMail, read_mails
from mailslice.codec.mime import envelope
from mailslice.codec.shown import shown
from mailslice.model.errors import BadInput, BadSetting, MailsliceError, TryAgain
from mailslice.model.mail import Mail
from mailslice.worker import QueueWorker
from mailslice.worker.io.content_loader import ContentBudget, Reservation

IN_FLIGHT = 64
BYTES_IN_FLIGHT = 64 * 1024 * 1024
"""Content in memory, unless one mail is larger: keeps 64 mails of 25 MB under 300 MB resident."""


@dataclass(frozen=True, slots=True)
class EnvelopeOptions:
    """Envelope of every mail; None = by the mail's headers. `sender` `<>` is the null sender."""

    sender: str | None
    recipients: tuple[str, ...]
    name: str | None
    state: str
    delay: timedelta | None
    max_bytes: int


class BulkEnqueue:
    """One run of `mail enqueue`: prints a line for each durable mail, collects failures."""

    def __init__(
        self,
        worker: QueueWorker,
        options: EnvelopeOptions,
        out: Output,
        *,
        bytes_in_flight: int = BYTES_IN_FLIGHT,
    ) -> None:
        self._worker = worker
        self._options = options
        self._out = out
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._budget = ContentBudget(bytes_in_flight)
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: Exception | None = None
        self._stop = threading.Event()
        self.done = 0
        self.failures: list[dict[str, object]] = []

    async def run(self, paths: Sequence[str]) -> None:
        """Enqueue all mails of `paths`. Raises what stopped it: TryAgain, BadSetting."""
        try:
            with _progress(paths) as advance:
                mails = _mails(paths, self._options.max_bytes, self._stop)
                while (
                    self._error is None
                    and (mail := await asyncio.to_thread(_next, mails)) is not None
                ):
                    if mail.content is None:
                        self._failed(mail, mail.error or "cannot be read")
                        continue
                    await self._slots.acquire()
                    reservation = await self._budget.acquire(len(mail.content))
                    task = asyncio.create_task(self._attempt(mail, mail.content, reservation))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    advance(len(mail.content))
                    del mail
                await asyncio.gather(*self._tasks)
        finally:
            self._stop.set()
        if isinstance(self._error, NoRoomError):
            raise NoRoomError(
                f"{self._error}; {self.done} mails were enqueued, listed or not"
            ) from self._error
        if self._error is not None:
            raise self._error

    async def _attempt(self, source: FoundMail, content: bytes, reservation: Reservation) -> None:
        try:
            if self._error is None:
                await self._enqueue(source, content)
        # A store that refuses the password from now on fails all further mails, too.
        except (TryAgain, BadSetting) as error:
            self._end(error)
            self._failed(source, str(error))
        except NoRoomError as error:  # the mail is enqueued, its line not printed
            self._end(error)
        except MailsliceError as error:
            self._failed(source, str(error))
        except Exception as error:  # noqa: BLE001 - stdout was closed, or a bug: `run` raises it
            self._end(error)
        finally:
            reservation.release()
            self._slots.release()

    def _end(self, error: Exception) -> None:
        """Stops the run: no further mail is enqueued. `run` raises the first error."""
        self._error = self._error or error
        self._stop.set()

    async def _enqueue(self, source: FoundMail, content: bytes) -> None:
        mail = _mail(self._options, content)
        queued = await self._worker.enqueue(mail, content, delay=self._options.delay)
        self.done += 1
        item = shapes.envelope(queued.enqueue_id, mail) | {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "path": source.label,
        }
        self._out.line(
            item,
            f"{queued.enqueue_id}  {shown(mail.name)}  {shapes.from_to(mail)}  "
            f"{shown(source.label)}",
        )

    def _failed(self, source: FoundMail, error: str) -> None:
        self.failures.append({"error": error, "path": source.label})


def _mail(options: EnvelopeOptions, content: bytes) -> Mail:
    """Raises BadInput for headers that name nobody or cannot be read: only this mail fails."""
    try:
        is_whole = options.sender is not None and options.recipients
        from_headers = None if is_whole else envelope(content)
    except Exception as error:
        raise BadInput(
            f"its headers cannot be read ({type(error).__name__}); give --sender and --recipient"
        ) from error
    sender = options.sender or (from_headers.sender if from_headers else None)
    recipients = options.recipients or (from_headers.recipients if from_headers else ())
    if not recipients:
        raise BadInput("the headers name no recipient; give --recipient")
    now_ns = time.time_ns()
    return Mail(
        name=options.name or f"Mail{now_ns // 1_000_000}-{uuid4()}",
        sender=None if sender == NULL_SENDER else sender,
        recipients=recipients,
        state=options.state,
        last_updated_ns=now_ns // 1_000_000 * 1_000_000,
    )


def _mails(paths: Sequence[str], max_bytes: int, stop: threading.Event) -> Iterator[FoundMail]:
    stdin = stoppable(sys.stdin.buffer, stop) if STDIN in paths else None
    for path in paths:
        yield from read_mails(path, max_bytes, stdin)


def _next(mails: Iterator[FoundMail]) -> FoundMail | None:
    try:
        return next(mails, None)
    except StoppedError:
        return None


@contextmanager
def _progress(paths: Sequence[str]) -> Iterator[Callable[[int], None]]:
    """A bar on stderr when that is a terminal: bytes read of all bytes of the paths."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    total = sum(_size(path) for path in paths) or None
    with Progress(
        TextColumn("enqueue"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        redirect_stdout=False,
        transient=True,
    ) as bar:
        task = bar.add_task("enqueue", total=total)
        yield lambda size: bar.advance(task, size)


def _size(path: str) -> int:
    """Bytes of a path; 0 when unknown. Reading reports a path that cannot be read."""
    try:
        if path in ("", STDIN):
            return 0
        files = [Path(path), *Path(path).rglob("*")]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0
