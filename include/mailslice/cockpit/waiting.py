"""Why a mail still waits, in sentences: facts of the stores -> what a person reads first."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mailslice.maintenance.health import span


@dataclass(frozen=True, slots=True)
class MailWorker:
    """The worker whose record has the mail. `silent`: how long ago it should have spoken."""

    worker: str
    age: timedelta
    stage: str
    attempt: int
    silent: timedelta | None = None


@dataclass(frozen=True, slots=True)
class WaitingMail:
    """What is known of one live mail. `attempts` failed; `answer` is that to the last of them.

    `consumers` and `dead_letters` are the queue's; `is_lost`: its health is LOST?.
    """

    now: datetime
    due: datetime | None = None
    attempts: int = 0
    answer: str = ""
    holder: MailWorker | None = None
    consumers: int | None = None
    dead_letters: int | None = None
    is_lost: bool = False


def why_it_waits(mail: WaitingMail) -> list[str]:
    """One fact a sentence, the nearest cause first."""
    return [*_where(mail), *_tried(mail)]


def _where(mail: WaitingMail) -> Iterator[str]:
    holder = mail.holder
    if holder is not None:
        stage = f", stage {holder.stage}" if holder.stage else ""
        yield (
            f"The worker {holder.worker} holds it for {span(holder.age)} "
            f"(attempt {holder.attempt}{stage})."
        )
        if holder.silent is not None:
            yield f"That worker has no heartbeat for {span(holder.silent)}: it died, or hangs."
        return
    if mail.due is not None and mail.due > mail.now:
        due = f"{mail.due.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        yield f"It is delayed, and due in {span(mail.due - mail.now)} ({due})."
        return
    if mail.consumers == 0:
        yield "Nobody consumes the queue."
    if mail.is_lost:
        yield "The broker may have lost its message: the duty queue_audit says so for each mail."
    if mail.dead_letters:
        letters = (
            "one dead letter" if mail.dead_letters == 1 else f"{mail.dead_letters:,} dead letters"
        )
        yield f"The queue has {letters}; this mail may be among them."
    if mail.consumers and not mail.is_lost and not mail.dead_letters:
        yield "It waits for a worker that is free."


def _tried(mail: WaitingMail) -> Iterator[str]:
    if mail.attempts:
        times = "once" if mail.attempts == 1 else f"{mail.attempts:,} times"
        yield f"It was tried {times} without success."
    if mail.answer:
        yield f"The last answer: {mail.answer}"
