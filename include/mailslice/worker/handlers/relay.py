"""Sends each mail to the next SMTP server (MAILSLICE_RELAY_*).

Recipients that were served are never served again for a refusal of others: those refused for now, and those refused for good, remain in a retry.
When all that remain are refused for good, or the mail is older than MAILSLICE_RELAY_MAX_AGE, it is given up (MAILSLICE_RELAY_GIVE_UP): the dead letter, or
the report to the sender, then names exactly them. What decides is the SMTP transaction (`smtp_dialogue`); no answer to a mail leaves its recipients in
doubt, and where the queue has stage marks nobody in doubt is tried again.
Recipients at a domain that takes no more now (MAILSLICE_RELAY_RATES, _CONNECTIONS) are left for later before the connection is made.
"""

from __future__ import annotations

import logging
import smtplib
import socket
import ssl
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta

from mailslice.codec.addresses import domain_of
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadSetting
from mailslice.model.mail import Mail, RecipientHeader
from mailslice.model.settings import GiveUp, Settings
from mailslice.worker.handler_stage import UNMARKED, BlockingStage
from mailslice.worker.handlers.smtp_dialogue import NO_ANSWER, Patience, Refusals, Transaction, send
from mailslice.worker.outcome import Bounce, Complete, Outcome, Reject, Retry
from mailslice.worker.throttle import UNTHROTTLED, BlockingThrottle

log = logging.getLogger(__name__)


class Relay:
    """A plain handler: blocking, run in the consumer's threads, one connection a mail."""

    def __init__(self, settings: Settings) -> None:
        if settings.relay.give_up is GiveUp.BOUNCE and settings.worker.bounce_queue is None:
            raise BadSetting(
                f"MAILSLICE_RELAY_GIVE_UP=bounce (in the {settings.source}) needs MAILSLICE_WORKER_BOUNCE_QUEUE, the queue that reports go to"
            )
        self._hop = settings.relay
        self._name = socket.getfqdn()

    def __call__(
        self,
        mail: Mail,
        content: bytes,
        *,
        stage: BlockingStage = UNMARKED,
        throttle: BlockingThrottle = UNTHROTTLED,
    ) -> Outcome:
        """Complete, Retry with the recipients that remain, or, when all of them are refused for good or it is too late, Reject or Bounce."""
        refused = Refusals()
        with throttle.entering({domain_of(recipient) for recipient in mail.recipients}) as waits:
            now = tuple(
                recipient for recipient in mail.recipients if domain_of(recipient) not in waits
            )
            if now or not mail.recipients:
                self._sent(replace(mail, recipients=now), content, refused, stage)
        held = frozenset(mail.recipients) - frozenset(now)
        outcome = outcome_of(mail, refused, held, max(waits.values(), default=timedelta(0)))
        return self._given_up(mail, outcome, refused, stage, late=bool(refused.for_now or held))

    def _sent(self, mail: Mail, content: bytes, refused: Refusals, stage: BlockingStage) -> None:
        """Sends to all recipients of `mail`; those who were not served are in `refused` then."""
        pending = list(transactions(mail))
        step = self._hop.timeout.total_seconds()
        patience = Patience(step, max(step, self._hop.answer_timeout.total_seconds()))
        try:
            with self._connected() as server:
                while pending:
                    send(
                        server,
                        mail.sender,
                        pending[0],
                        content,
                        refused=refused,
                        stage=stage,
                        patience=patience,
                    )
                    pending.pop(0)
                    if patience.is_late:
                        break
        except (OSError, smtplib.SMTPException) as error:
            log.info(
                "next hop %s:%d failed: %s",
                self._hop.host,
                self._hop.port,
                type(error).__name__,
                extra={"action": "relay_failed"},
            )
            log.debug("next hop failed", exc_info=error)
        for transaction in pending:
            refused.add(
                (recipient for recipient in transaction.recipients if recipient not in refused),
                NO_ANSWER,
            )

    def _given_up(
        self, mail: Mail, outcome: Outcome, refused: Refusals, stage: BlockingStage, *, late: bool
    ) -> Outcome:
        """`late`: some wait for a later attempt, which a mail that is too old does not get."""
        if (
            isinstance(outcome, Retry)
            and late
            and stage.age is not None
            and stage.age > self._hop.max_age
        ):
            # Who was served is done; for the others this was the last attempt.
            if len(outcome.recipients or ()) < len(mail.recipients):
                return Retry(recipients=outcome.recipients)
            answers = refused.counted() or "none, for its destinations took no more"
            outcome = Reject(
                f"given up after {format_duration(self._hop.max_age)} (MAILSLICE_RELAY_MAX_AGE); the next hop's last answers: {answers}"
            )
        if isinstance(outcome, Reject) and mail.recipients and self._hop.give_up is GiveUp.BOUNCE:
            return Bounce(
                outcome.reason,
                tuple(refused.failure(recipient) for recipient in dict.fromkeys(mail.recipients)),
            )
        return outcome

    def _connected(self) -> smtplib.SMTP:
        timeout = self._hop.timeout.total_seconds()
        server = smtplib.SMTP(
            self._hop.host, self._hop.port, local_hostname=self._name, timeout=timeout
        )
        try:
            server.ehlo_or_helo_if_needed()
            if self._hop.starttls:
                server.starttls(context=ssl.create_default_context())
                server.ehlo()
        except BaseException:
            server.close()
            raise
        return server


def transactions(mail: Mail) -> Iterator[Transaction]:
    """All recipients without headers of their own together, each of the others alone."""
    own: dict[str, list[RecipientHeader]] = {}
    for header in mail.per_recipient_headers:
        own.setdefault(header.recipient.lower(), []).append(header)
    recipients = tuple(dict.fromkeys(mail.recipients))
    plain = tuple(recipient for recipient in recipients if recipient.lower() not in own)
    if plain:
        yield Transaction(plain)
    for recipient in recipients:
        if headers := own.get(recipient.lower()):
            yield Transaction((recipient,), tuple(headers))


def outcome_of(
    mail: Mail, refused: Refusals, held: Collection[str] = (), wait: timedelta = timedelta(0)
) -> Outcome:
    """What remains decides. Those refused for good go round once more, alone, so that the dead letter names nobody else.

    `held` have to `wait` for their destination. That is no failed attempt, also when others were refused for now: it cannot be the last one for the held.
    """
    remaining = tuple(
        recipient for recipient in mail.recipients if recipient in refused or recipient in held
    )
    if not mail.recipients:
        return Reject("the mail has no recipient")
    if not remaining:
        return Complete()
    if held:
        return Retry(
            after=wait, recipients=remaining, back_off=bool(refused.for_now), throttled=True
        )
    if refused.for_now:
        return Retry(recipients=remaining, back_off=True)
    if len(remaining) < len(mail.recipients):
        return Retry(recipients=remaining)
    return Reject(f"the next hop refused all recipients for good: {refused.counted()}")
