"""Why a mail still waits: facts of the stores -> sentences for a person."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from mailslice.codec.addresses import domain_of
from mailslice.maintenance.health import Health, span
from mailslice.maintenance.liveness import Stuck
from mailslice.maintenance.overview import QueueOverview
from mailslice.model.holds import ActiveHolds, Hold
from mailslice.stores.cassandra.own import DelayState


def why_it_waits(
    now: datetime, state: DelayState, one: QueueOverview, holder: Stuck | None, to: Iterable[str]
) -> list[str]:
    """One fact a sentence, the nearest cause first. `holder`: the worker whose record has the mail,
    `to`: its recipients.
    """
    holds = ActiveHolds.at(now, one.holds)
    hold = holds.whole or holds.of(map(domain_of, to))
    return [*_where(now, state, one, holder, hold), *_tried(state)]


def _where(
    now: datetime, state: DelayState, one: QueueOverview, holder: Stuck | None, hold: Hold | None
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
    if hold is not None:
        yield f"Held: {hold.sentence}."
    if state.due is not None and state.due > now:
        until = f"{state.due.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        why = " until its destination takes more" if state.throttled else ""
        yield f"It is delayed{why}, and due in {span(state.due - now)} ({until})."
        return
    is_lost, letters = one.verdict.health is Health.LOST, one.dead_letters
    if one.consumers == 0 and (hold is None or hold.domain):
        yield "Nobody consumes the queue."
    if is_lost:
        yield "The broker may have lost its message: the duty queue_audit says so for each mail."
    if letters:
        count = "one dead letter" if letters == 1 else f"{letters:,} dead letters"
        yield f"The queue has {count}; this mail may be among them."
    if one.consumers and not (hold or is_lost or letters):
        yield "It waits for a worker that is free."


def _tried(state: DelayState) -> Iterator[str]:
    if state.failures:
        times = "once" if state.failures == 1 else f"{state.failures:,} times"
        yield f"It was tried {times} without success."
    if state.answer:
        yield f"The last answer: {state.answer}"
