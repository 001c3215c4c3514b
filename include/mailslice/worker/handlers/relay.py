"""Sends each mail to the next SMTP server (MAILSLICE_RELAY_*).

Recipients that were served are never served again for a refusal of others: those refused for now, and those refused for good, remain in a retry.
When all that remain are refused for good, or the mail is older than MAILSLICE_RELAY_MAX_AGE, it is given up (MAILSLICE_RELAY_GIVE_UP): the dead letter, or
the report to the sender, then names exactly them. What decides is the SMTP transaction: marked as sending before DATA, as sent after its 250; no answer
leaves its recipients in doubt, and where the queue has stage marks nobody in doubt is tried again.
Recipients at a domain that takes no more now (MAILSLICE_RELAY_RATES, _CONNECTIONS) are left for later before the connection is made.
"""

from __future__ import annotations

import logging
import re
import smtplib
import socket
import ssl
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta

from mailslice.codec.addresses import domain_of
from mailslice.codec.reports import Failure
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadSetting
from mailslice.model.mail import Mail, RecipientHeader
from mailslice.model.settings import GiveUp, Settings
from mailslice.worker.handler_stage import UNMARKED, BlockingStage
from mailslice.worker.handlers.smtp_wire import header_block, is_sendable, on_the_wire, with_end
from mailslice.worker.outcome import Bounce, Complete, Outcome, Reject, Retry
from mailslice.worker.throttle import UNTHROTTLED, BlockingThrottle

log = logging.getLogger(__name__)

_NO_ANSWER = 0
_BAD_ADDRESS = 553
_OURS_TO_MEND = frozenset({530, 534, 535, 538})
"""The next hop wants AUTH or TLS: our settings are wrong, not the mail."""
_STATUS = re.compile(r"(5\.\d{1,3}\.\d{1,3})\b", re.ASCII)
_TOO_MANY_RECIPIENTS = 552
"""As an answer to RCPT it means "later" (RFC 5321 4.5.3.1.10)."""


@dataclass(slots=True)
class Refusals:
    """The recipients that were not served: recipient -> SMTP code, 0 = no answer."""

    for_now: dict[str, int] = field(default_factory=dict)
    for_good: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    """Recipient -> what the server said, for reports."""

    def add(self, recipients: Iterable[str], code: int, words: str = "") -> None:
        """5yz is for good, all else for now."""
        kind = self.for_good if 500 <= code < 600 and code not in _OURS_TO_MEND else self.for_now
        new = [recipient for recipient in recipients if recipient not in self.for_good]
        kind.update(dict.fromkeys(new, code))
        self.words.update(dict.fromkeys(new, words))

    def failure(self, recipient: str) -> Failure:
        """What a report says of a recipient that is given up."""
        code = self.for_good.get(recipient, self.for_now.get(recipient, _NO_ANSWER))
        said = " ".join(f"{code} {self.words.get(recipient, '')}".split()) if code != _NO_ANSWER else None
        if recipient not in self.for_good:
            return Failure(recipient, "4.4.7", "it could not be delivered for too long, and is given up", said)
        status = _STATUS.match(self.words.get(recipient, ""))
        return Failure(recipient, status[1] if status else "5.0.0", "the next server refused it for good", said)

    def __contains__(self, recipient: str) -> bool:
        return recipient in self.for_now or recipient in self.for_good


@dataclass(frozen=True, slots=True)
class Transaction:
    """One MAIL, RCPT..., DATA."""

    recipients: tuple[str, ...]
    headers: tuple[RecipientHeader, ...] = ()


class Relay:
    """A plain handler: blocking, run in the consumer's threads, one connection a mail."""

    def __init__(self, settings: Settings) -> None:
        if settings.relay.give_up is GiveUp.BOUNCE and settings.worker.bounce_queue is None:
            raise BadSetting(f"MAILSLICE_RELAY_GIVE_UP=bounce (in the {settings.source}) needs MAILSLICE_WORKER_BOUNCE_QUEUE, the queue that reports go to")
        self._hop = settings.relay
        self._name = socket.getfqdn()

    def __call__(self, mail: Mail, content: bytes, *, stage: BlockingStage = UNMARKED, throttle: BlockingThrottle = UNTHROTTLED) -> Outcome:
        """Complete, Retry with the recipients that remain, or, when all of them are refused for good or it is too late, Reject or Bounce."""
        refused = Refusals()
        with throttle.entering({domain_of(recipient) for recipient in mail.recipients}) as waits:
            now = tuple(recipient for recipient in mail.recipients if domain_of(recipient) not in waits)
            if now or not mail.recipients:
                self._sent(replace(mail, recipients=now), content, refused, stage)
        held = frozenset(mail.recipients) - frozenset(now)
        outcome = outcome_of(mail, refused, held, max(waits.values(), default=timedelta(0)))
        return self._given_up(mail, outcome, refused, stage, late=bool(refused.for_now or held))

    def _sent(self, mail: Mail, content: bytes, refused: Refusals, stage: BlockingStage) -> None:
        """Sends to all recipients of `mail`; those who were not served are in `refused` then."""
        pending = list(transactions(mail))
        try:
            with self._connected() as server:
                while pending:
                    _send(server, mail.sender, pending[0], content, refused=refused, stage=stage)
                    pending.pop(0)
        except (OSError, smtplib.SMTPException) as error:
            log.info("next hop %s:%d failed: %s", self._hop.host, self._hop.port, type(error).__name__, extra={"action": "relay_failed"})
            log.debug("next hop failed", exc_info=error)
        for transaction in pending:
            refused.add(transaction.recipients, _NO_ANSWER)

    def _given_up(self, mail: Mail, outcome: Outcome, refused: Refusals, stage: BlockingStage, *, late: bool) -> Outcome:
        """`late`: some wait for a later attempt, which a mail that is too old does not get."""
        if isinstance(outcome, Retry) and late and stage.age is not None and stage.age > self._hop.max_age:
            # Who was served is done; for the others this was the last attempt.
            if len(outcome.recipients or ()) < len(mail.recipients):
                return Retry(recipients=outcome.recipients)
            answers = _counted([*refused.for_now.values(), *refused.for_good.values()]) or "none, for its destinations took no more"
            outcome = Reject(f"given up after {format_duration(self._hop.max_age)} (MAILSLICE_RELAY_MAX_AGE); the next hop's last answers: {answers}")
        if isinstance(outcome, Reject) and mail.recipients and self._hop.give_up is GiveUp.BOUNCE:
            return Bounce(outcome.reason, tuple(refused.failure(recipient) for recipient in dict.fromkeys(mail.recipients)))
        return outcome

    def _connected(self) -> smtplib.SMTP:
        timeout = self._hop.timeout.total_seconds()
        server = smtplib.SMTP(self._hop.host, self._hop.port, local_hostname=self._name, timeout=timeout)
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
    special = {recipient: tuple(h for h in mail.per_recipient_headers if h.recipient == recipient) for recipient in mail.recipients}
    plain = tuple(recipient for recipient, headers in special.items() if not headers)
    if plain:
        yield Transaction(plain)
    for recipient, headers in special.items():
        if headers:
            yield Transaction((recipient,), headers)


def outcome_of(mail: Mail, refused: Refusals, held: Collection[str] = (), wait: timedelta = timedelta(0)) -> Outcome:
    """What remains decides. Those refused for good go round once more, alone, so that the dead letter names nobody else.

    `held` have to `wait` for their destination. That is no failed attempt, also when others were refused for now: it cannot be the last one for the held.
    """
    remaining = tuple(recipient for recipient in mail.recipients if recipient in refused or recipient in held)
    if not mail.recipients:
        return Reject("the mail has no recipient")
    if not remaining:
        return Complete()
    if held:
        return Retry(after=wait, recipients=remaining, back_off=bool(refused.for_now), throttled=True)
    if refused.for_now:
        return Retry(recipients=remaining, back_off=True)
    if len(remaining) < len(mail.recipients):
        return Retry(recipients=remaining)
    return Reject(f"the next hop refused all recipients for good: {_counted(refused.for_good.values())}")


def _counted(codes: Iterable[int]) -> str:
    return ", ".join(f"{code or 'no answer'} for {count}" for code, count in sorted(Counter(codes).items()))


def _send(server: smtplib.SMTP, sender: str | None, transaction: Transaction, content: bytes, *, refused: Refusals, stage: BlockingStage) -> None:
    """One transaction; raises when the connection is of no more use, and then nobody of it was served, or, after `stage.sending`, nobody knows."""
    recipients = _addressable(server, sender, transaction.recipients, refused)
    if not recipients:
        return
    wire = header_block(transaction.headers) + on_the_wire(content)
    code, words = _answer(server, _mail_command(server, sender, recipients, wire))
    if code != 250:
        refused.add(recipients, code, words)
        server.rset()
        return
    accepted = []
    for recipient in recipients:
        code, words = _answer(server, f"RCPT TO:<{recipient}>")
        if code in (250, 251):
            accepted.append(recipient)
        else:
            refused.add((recipient,), 452 if code == _TOO_MANY_RECIPIENTS else code, words)
    if not accepted:
        server.rset()
        return
    stage.sending(accepted)
    code, words = _data(server, wire, accepted, stage)
    if code == 250:
        stage.sent(accepted)
    else:
        stage.not_sent(accepted)
        refused.add(accepted, code, words)


def _data(server: smtplib.SMTP, wire: bytes, recipients: list[str], stage: BlockingStage) -> tuple[int, str]:
    """The answer to the mail itself. Only a connection that breaks after the last byte leaves the recipients in doubt: without it no server takes a mail."""
    try:
        code, words = server.docmd("DATA")
        if code == 354:
            server.send(with_end(wire))
    except (OSError, smtplib.SMTPException):
        stage.not_sent(recipients)
        raise
    if code == 354:
        code, words = server.getreply()
    return code, _text(words)


def _addressable(server: smtplib.SMTP, sender: str | None, recipients: tuple[str, ...], refused: Refusals) -> tuple[str, ...]:
    """Those that can be named to this server: beyond ASCII it must speak SMTPUTF8 (RFC 6531), and so must it for the sender."""
    utf8 = server.has_extn("smtputf8")

    def nameable(address: str) -> bool:
        return is_sendable(address) and (utf8 or address.isascii())

    good = tuple(r for r in recipients if nameable(r)) if nameable(sender or "") else ()
    refused.add((r for r in recipients if r not in good), _BAD_ADDRESS)
    return good


def _mail_command(server: smtplib.SMTP, sender: str | None, recipients: tuple[str, ...], wire: bytes) -> str:
    words = [f"MAIL FROM:<{sender or ''}>"]
    if server.has_extn("size"):
        words.append(f"SIZE={len(wire)}")
    if server.has_extn("8bitmime") and not wire.isascii():
        words.append("BODY=8BITMIME")
    needs_utf8 = not all(address.isascii() for address in (sender or "", *recipients))
    if needs_utf8:
        words.append("SMTPUTF8")
    server.command_encoding = "utf-8" if needs_utf8 else "ascii"
    return " ".join(words)


def _answer(server: smtplib.SMTP, command: str) -> tuple[int, str]:
    code, words = server.docmd(command)
    if code == 421:  # the server closes: what was refused so far stands, the rest is for later
        raise smtplib.SMTPServerDisconnected("421")
    return code, _text(words)


def _text(words: bytes) -> str:
    return words.decode("utf-8", "replace")
