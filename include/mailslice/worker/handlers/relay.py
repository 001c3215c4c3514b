"""Sends each mail to the next SMTP server (MAILSLICE_RELAY_*).

A retry names only recipients that were not served. The mail is given up (MAILSLICE_RELAY_GIVE_UP)
when all that remain are refused permanently, or are refused when it is older than
MAILSLICE_RELAY_MAX_AGE. The dead letter or report names exactly these recipients.

A mail without an answer leaves its recipients in doubt; with stage marks they are never tried
again. Recipients at a domain that takes no more now (MAILSLICE_RELAY_RATES, _CONNECTIONS) wait.
When the worker ends, the relay returns at once what was not sent whole, and waits only for answers.
"""

import logging
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from threading import Event

from mailslice.codec.addresses import domain_of
from mailslice.model.batches import batches
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadSetting, MailsliceError
from mailslice.model.mail import Mail, RecipientHeader
from mailslice.model.settings import GiveUp, Settings
from mailslice.worker.events import redacted
from mailslice.worker.handlers.next_hop import Connection, NextHop, StaleConnection
from mailslice.worker.handlers.smtp_dialogue import (
    BEGIN_WITHIN,
    Stopping,
    Timeouts,
    Transaction,
    send,
)
from mailslice.worker.handlers.smtp_refusals import NO_ANSWER, NO_REFUSAL, Refusals
from mailslice.worker.handlers.smtp_wire import Body
from mailslice.worker.io.destination_throttle import UNTHROTTLED, BlockingThrottle
from mailslice.worker.outcome import Bounce, Complete, Outcome, Reject, Retry
from mailslice.worker.stages.handler_stage import UNMARKED, BlockingStage

log = logging.getLogger(__name__)

_MAX_RECIPIENTS = 50
"""The limit of Amazon SES, and Postfix's default (default_destination_recipient_limit)."""


class Relay:
    """A plain handler: blocking, run in the consumer's threads."""

    def __init__(
        self, settings: Settings, *, hop: NextHop | None = None, begin_within: float = BEGIN_WITHIN
    ) -> None:
        if settings.relay.give_up is GiveUp.BOUNCE and settings.worker.bounce_queue is None:
            raise BadSetting(
                f"MAILSLICE_RELAY_GIVE_UP=bounce ({settings.where('MAILSLICE_RELAY_GIVE_UP')}) "
                "needs MAILSLICE_WORKER_BOUNCE_QUEUE, the queue that reports go to"
            )
        self._settings = settings.relay
        self._hop = hop or NextHop(settings.relay)
        self._begin_within = begin_within

    def __call__(
        self,
        mail: Mail,
        content: bytes,
        *,
        stage: BlockingStage = UNMARKED,
        throttle: BlockingThrottle = UNTHROTTLED,
        arrived: float | None = None,
        stopping: Event | None = None,
    ) -> Outcome:
        """Complete, or Retry with those that remain. Reject or Bounce: all refused, or too old."""
        stopping, refused = stopping or Event(), Refusals()
        if stopping.is_set():
            return Retry(why="the worker ends")
        step = self._settings.timeout.total_seconds()
        answer = max(step, self._settings.answer_timeout.total_seconds())
        began = time.monotonic() if arrived is None else arrived
        timeouts = Timeouts(step, answer, began, stopping, self._begin_within)
        with throttle.entering({domain_of(recipient) for recipient in mail.recipients}) as waits:
            allowed = tuple(r for r in mail.recipients if domain_of(r) not in waits)
            part = replace(mail, recipients=allowed)
            unsent = self._send(part, content, refused, stage, timeouts) if allowed else frozenset()
        throttled = frozenset(mail.recipients) - frozenset(allowed)
        if unsent:
            remaining = {*unsent, *throttled, *refused.for_now, *refused.for_good}
            return Retry(
                recipients=tuple(r for r in mail.recipients if r in remaining),
                back_off=bool(refused.for_now) and not refused.accepted,
                why="the worker ends, or the time of an attempt, before all were sent to",
                answer=refused.accepted,
            )
        outcome = outcome_of(mail, refused, throttled, max(waits.values(), default=timedelta(0)))
        return self._final_outcome(mail, outcome, refused, stage)

    def _send(
        self,
        mail: Mail,
        content: bytes,
        refused: Refusals,
        stage: BlockingStage,
        timeouts: Timeouts,
    ) -> frozenset[str]:
        """Sends it; adds recipients not served to `refused`. Returns those it had no time for."""
        pending = deque(transactions(mail))
        pending.rotate(1 - stage.attempt)  # each is first in its turn: one may always fail
        body = Body.of(content)
        transact = partial(send, body=body, refused=refused, stage=stage, timeouts=timeouts)
        connection: Connection | None = None
        stopped, problem = False, "too late to begin"
        try:
            while pending:
                stopped = False
                connection = connection or self._hop.connection()
                try:
                    transact(connection, mail.sender, pending[0])
                except StaleConnection:
                    connection = self._hop.connection(fresh=True)
                    continue
                pending.popleft()
                # If nobody was served the next attempt may get no further: this is a failed one.
                stopped = timeouts.stopping.is_set() or bool(refused.accepted)
                self._hop.release(connection)
                connection = None
                if timeouts.stopping.is_set() or timeouts.is_late:
                    break
        except Stopping:
            stopped = True
        except MailsliceError:
            raise  # for the worker: another one has the mail, or a store is away
        except Exception as error:  # noqa: BLE001 - served recipients stay served
            problem = self._log_failure(error)
        finally:
            if connection is not None:
                connection.close()  # unread replies must not answer the next mail
        pending_recipients = (r for transaction in pending for r in transaction.recipients)
        unsent = frozenset((*pending_recipients, *refused.unnamed))
        if stopped:
            return unsent
        refused.add((r for r in unsent if r not in refused), NO_ANSWER, problem)
        return frozenset()

    def _log_failure(self, error: Exception) -> str:
        """Logs it, returns the text. A server's text may name addresses, which only DEBUG logs."""
        what = redacted(f"{type(error).__name__}: {error}")
        facts = (self._settings.host, self._settings.port, what)
        level = logging.INFO if isinstance(error, OSError) else logging.WARNING
        log.log(level, "next hop %s:%d failed: %s", *facts, extra={"action": "relay_failed"})
        log.debug("next hop failed", exc_info=error)
        return what

    def _final_outcome(
        self, mail: Mail, outcome: Outcome, refused: Refusals, stage: BlockingStage
    ) -> Outcome:
        """Ends a mail too old when the next hop refuses it, unless a recipient has to wait."""
        is_old = stage.age is not None and stage.age > self._settings.max_age
        ends = is_old and NO_REFUSAL.isdisjoint(refused.for_now.values())
        if isinstance(outcome, Retry) and outcome.back_off and not outcome.throttled and ends:
            # Served recipients are done; for the others this was the last attempt.
            if len(outcome.recipients or ()) < len(mail.recipients):
                return Retry(recipients=outcome.recipients, why=outcome.why, answer=outcome.answer)
            outcome = Reject(
                f"given up after {format_duration(self._settings.max_age)} "
                f"(MAILSLICE_RELAY_MAX_AGE); the next hop's last answers: {refused.counted()}",
                refused.answers(),
            )
        bounces = self._settings.give_up is GiveUp.BOUNCE
        if isinstance(outcome, Reject) and mail.recipients and bounces:
            failures = tuple(map(refused.failure, dict.fromkeys(mail.recipients)))
            return Bounce(outcome.reason, failures, outcome.answer)
        return outcome


def transactions(mail: Mail) -> Iterator[Transaction]:
    """Groups up to 50 recipients without headers of their own; each other recipient is alone."""
    own: dict[str, list[RecipientHeader]] = {}
    for header in mail.per_recipient_headers:
        own.setdefault(header.recipient.lower(), []).append(header)
    recipients = tuple(dict.fromkeys(mail.recipients))
    plain = tuple(recipient for recipient in recipients if recipient.lower() not in own)
    for together in batches(plain, _MAX_RECIPIENTS):
        yield Transaction(tuple(together))
    for recipient in recipients:
        if headers := own.get(recipient.lower()):
            yield Transaction((recipient,), tuple(headers))


def outcome_of(
    mail: Mail, refused: Refusals, throttled: Collection[str] = (), wait: timedelta = timedelta(0)
) -> Outcome:
    """The outcome by the remaining recipients. Permanently refused ones get one more retry, alone.
    `throttled` recipients have to `wait`, which is no failed attempt.
    """
    remaining = tuple(r for r in mail.recipients if r in refused or r in throttled)
    if not mail.recipients:
        return Reject("the mail has no recipient")
    if not remaining:
        return Complete(refused.accepted)
    why, back_off = refused.answers(), bool(refused.for_now)
    later = Retry(recipients=remaining, back_off=back_off, why=why, answer=refused.accepted)
    if throttled:
        waiting = f"{len(throttled)} recipients wait for destinations that take no more now"
        why = f"{why}; {waiting}" if why else waiting
        return replace(later, after=wait, throttled=True, why=why)
    if back_off or len(remaining) < len(mail.recipients):
        return later
    return Reject(f"the next hop refused all recipients for good: {refused.counted()}", why)
