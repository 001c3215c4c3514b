"""Why a mail still waits, in sentences: facts of the stores -> what a person reads first."""

from collections.abc import Iterator
from datetime import UTC, datetime

from mailslice.maintenance.health import Health, span
from mailslice.maintenance.liveness import Stuck
from mailslice.maintenance.overview import QueueOverview
from mailslice.stores.cassandra.own import DelayState


def why_it_waits(
    now: datetime, state: DelayState, one: QueueOverview, holder: Stuck | None
) -> list[str]:
    """One fact a sentence, the nearest cause first. `holder`: the worker whose record has it."""
    return [*_where(now, state.due, one, holder), *_tried(state)]


def _where(
    now: datetime, due: datetime | None, one: QueueOverview, holder: Stuck | None
) -> Iterator[str]:
    if holder is not None:
        record, mail = holder.record, holder.mail
        stage = f", stage {mail.stage}" if mail.stage else ""
        yield (
            f"The worker {record.worker} holds it for {span(holder.age)} "
            f"(attempt {mail.attempt}{stage})."
        )
        if not record.is_alive:
            yield f"That worker has no heartbeat for {span(record.silence)}: it died, or hangs."
        return
    if due is not None and due > now:
        until = f"{due.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        yield f"It is delayed, and due in {span(due - now)} ({until})."
        return
    is_lost, letters = one.verdict.health is Health.LOST, one.dead_letters
    if one.consumers == 0:
        yield "Nobody consumes the queue."
    if is_lost:
        yield "The broker may have lost its message: the duty queue_audit says so for each mail."
    if letters:
        count = "one dead letter" if letters == 1 else f"{letters:,} dead letters"
        yield f"The queue has {count}; this mail may be among them."
    if one.consumers and not is_lost and not letters:
        yield "It waits for a worker that is free."


def _tried(state: DelayState) -> Iterator[str]:
    if state.failures:
        times = "once" if state.failures == 1 else f"{state.failures:,} times"
        yield f"It was tried {times} without success."
    if state.answer:
        yield f"The last answer: {state.answer}"
