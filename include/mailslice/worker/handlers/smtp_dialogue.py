"""One SMTP transaction with the next server: MAIL, RCPT..., DATA, the mail, and what each answer means for its recipients.

The first digit of an answer decides (RFC 5321 4.2.1, 4.3.2). What can be no answer to the command ends the connection: the replies may be out of step with the
commands, and the next 250 that of an earlier one. Marked as sending before DATA and as sent after the mail's own 2yz. Until its last byte has gone nobody
has the mail; after that only a refusal says that nobody has it, and everything else leaves its recipients in doubt.
"""

from __future__ import annotations

import re
import smtplib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from mailslice.codec.reports import Failure
from mailslice.model.mail import RecipientHeader
from mailslice.worker.handler_stage import BlockingStage
from mailslice.worker.handlers.smtp_wire import header_block, is_sendable, on_the_wire, with_end

NO_ANSWER = 0
_BAD_ADDRESS = 553
_CLOSING = 421
_OURS_TO_MEND = frozenset({530, 534, 535, 538})
"""The next hop wants AUTH or TLS: our settings are wrong, not the mail."""
_STATUS = re.compile(r"(5\.\d{1,3}\.\d{1,3})\b", re.ASCII)
_TOO_MANY_RECIPIENTS = 552
"""As an answer to RCPT it means "later" (RFC 5321 4.5.3.1.10)."""
_PIECE = 64 * 1024
_BEGUN_WITHIN = 5 * 60.0
_SENT_WITHIN = 15 * 60.0
"""Seconds. RabbitMQ takes back what is held for 30 minutes (`consumer_timeout`), and another worker would send it, too: the last answer must come before."""
_NO_UTF8, _BAD_RECIPIENT, _BAD_SENDER = "5.6.7", "5.1.3", "5.1.7"
_REFUSED_HERE = {
    _NO_UTF8: (
        "no SMTPUTF8",
        "the next server takes no addresses beyond ASCII (SMTPUTF8), and the mail goes to or comes from one",
    ),
    _BAD_RECIPIENT: ("bad address", "no mail server can be told this address"),
    _BAD_SENDER: ("bad sender", "no mail server can be told the address of the mail's sender"),
}
"""Status (RFC 3463) of what the next server was never asked -> in short, and for the mail's sender."""


@dataclass(slots=True)
class Refusals:
    """The recipients that were not served: recipient -> SMTP code, 0 = no answer."""

    for_now: dict[str, int] = field(default_factory=dict)
    for_good: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    """Recipient -> what the server said, for reports."""
    here: dict[str, str] = field(default_factory=dict)
    """Recipient -> the status by which it was refused here, without asking the server: in `for_good`, too."""

    def add(self, recipients: Iterable[str], code: int, words: str = "") -> None:
        """5yz is for good, all else for now."""
        kind = self.for_good if 500 <= code < 600 and code not in _OURS_TO_MEND else self.for_now
        new = [recipient for recipient in recipients if recipient not in self.for_good]
        kind.update(dict.fromkeys(new, code))
        self.words.update(dict.fromkeys(new, words))

    def add_here(self, recipient: str, status: str) -> None:
        """Refused for good before the server was asked."""
        self.add((recipient,), _BAD_ADDRESS)
        self.here[recipient] = status

    def failure(self, recipient: str) -> Failure:
        """What a report says of a recipient that is given up."""
        if (status := self.here.get(recipient)) is not None:
            return Failure(recipient, status, _REFUSED_HERE[status][1])
        code = self.for_good.get(recipient, self.for_now.get(recipient, NO_ANSWER))
        said = (
            " ".join(f"{code} {self.words.get(recipient, '')}".split())
            if code != NO_ANSWER
            else None
        )
        if recipient not in self.for_good:
            return Failure(
                recipient, "4.4.7", "it could not be delivered for too long, and is given up", said
            )
        found = _STATUS.match(self.words.get(recipient, ""))
        return Failure(
            recipient, found[1] if found else "5.0.0", "the next server refused it for good", said
        )

    def counted(self) -> str:
        """The answers and how often each was given, without addresses."""
        codes = (self.for_now | self.for_good).items()
        named = Counter(
            (
                code,
                _REFUSED_HERE[self.here[one]][0] if one in self.here else str(code or "no answer"),
            )
            for one, code in codes
        )
        return ", ".join(f"{name} for {count}" for (_, name), count in sorted(named.items()))

    def __contains__(self, recipient: str) -> bool:
        return recipient in self.for_now or recipient in self.for_good


@dataclass(frozen=True, slots=True)
class Transaction:
    """One MAIL, RCPT..., DATA."""

    recipients: tuple[str, ...]
    headers: tuple[RecipientHeader, ...] = ()


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for one command, or 64 KiB of a mail (`step`), and for the answer to a mail that was sent whole; and since when a mail is being sent."""

    step: float
    answer: float
    began: float = field(default_factory=time.monotonic)

    @property
    def is_late(self) -> bool:
        """No further transaction is begun now, and no further recipient named."""
        return time.monotonic() - self.began > _BEGUN_WITHIN

    @property
    def is_over(self) -> bool:
        """A mail that is not sent whole by now is given up for this time."""
        return time.monotonic() - self.began > _SENT_WITHIN


def send(
    server: smtplib.SMTP,
    sender: str | None,
    transaction: Transaction,
    content: bytes,
    *,
    refused: Refusals,
    stage: BlockingStage,
    patience: Patience,
) -> None:
    """One transaction; raises when the connection is of no more use, and then nobody of it was served, or, after `stage.sending`, nobody knows."""
    recipients = _addressable(server, sender, transaction.recipients, refused)
    if not recipients:
        return
    wire = header_block(transaction.headers) + on_the_wire(content)
    code, words = _answer(
        server, _mail_command(server, sender, recipients, wire), recipients, refused
    )
    if code // 100 != 2:
        refused.add(recipients, code, words)
        _answer(server, "RSET", (), refused)
        return
    accepted: list[str] = []
    for recipient in recipients:
        if accepted and patience.is_late:
            refused.add((recipient,), NO_ANSWER)
            continue
        code, words = _answer(server, f"RCPT TO:<{recipient}>", (recipient,), refused)
        if code // 100 == 2:
            accepted.append(recipient)
        else:
            refused.add((recipient,), 452 if code == _TOO_MANY_RECIPIENTS else code, words)
    if not accepted:
        _answer(server, "RSET", (), refused)
        return
    stage.sending(accepted)
    code, words = _data(server, wire, accepted, refused, stage=stage, patience=patience)
    if code // 100 == 2:
        stage.sent(accepted)
    else:
        stage.not_sent(accepted)
        refused.add(accepted, code, words)


def _data(
    server: smtplib.SMTP,
    wire: bytes,
    recipients: list[str],
    refused: Refusals,
    *,
    stage: BlockingStage,
    patience: Patience,
) -> tuple[int, str]:
    """The answer to the mail itself, or the refusal of DATA. Raises when there is none: with `stage.not_sent` while the last byte has not gone."""
    try:
        code, words = _answer(server, "DATA", recipients, refused, yes=(354,))
        if code == 354:
            _pour(server, with_end(wire), patience)
    except (OSError, smtplib.SMTPException):
        stage.not_sent(recipients)
        raise
    if code != 354:
        return code, words
    _set_timeout(server, patience.answer)
    code, said = server.getreply()
    if code // 100 not in {2, 4, 5}:
        raise _ended(server, code)
    _set_timeout(server, patience.step)
    return code, _text(said)


def _pour(server: smtplib.SMTP, data: bytes, patience: Patience) -> None:
    """Piece by piece: a socket's time-out is for all that one call sends."""
    for at in range(0, len(data), _PIECE):
        if patience.is_over:
            server.close()
            raise TimeoutError(f"not sent whole within {_SENT_WITHIN:.0f} s")
        server.send(data[at : at + _PIECE])


def _addressable(
    server: smtplib.SMTP, sender: str | None, recipients: tuple[str, ...], refused: Refusals
) -> tuple[str, ...]:
    """Those that can be named to this server: beyond ASCII it must speak SMTPUTF8 (RFC 6531), and so must it for the sender."""
    utf8 = server.has_extn("smtputf8")
    sender = sender or ""
    good = []
    for recipient in recipients:
        if not is_sendable(recipient):
            refused.add_here(recipient, _BAD_RECIPIENT)
        elif not is_sendable(sender):
            refused.add_here(recipient, _BAD_SENDER)
        elif not (utf8 or (recipient.isascii() and sender.isascii())):
            refused.add_here(recipient, _NO_UTF8)
        else:
            good.append(recipient)
    return tuple(good)


def _mail_command(
    server: smtplib.SMTP, sender: str | None, recipients: tuple[str, ...], wire: bytes
) -> str:
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


def _answer(
    server: smtplib.SMTP,
    command: str,
    recipients: Iterable[str],
    refused: Refusals,
    *,
    yes: Iterable[int] = range(200, 300),
) -> tuple[int, str]:
    """One of `yes`, or a refusal. Raises after what is neither, and when the server closes (421): that is the answer for `recipients`, the rest has none."""
    code, said = server.docmd(command)
    words = _text(said)
    if code == _CLOSING:
        refused.add(recipients, code, words)
    if code == _CLOSING or not (code in yes or 400 <= code < 600):
        raise _ended(server, code)
    return code, words


def _ended(server: smtplib.SMTP, code: int) -> smtplib.SMTPServerDisconnected:
    """Closed here, without QUIT: its answer would have to be waited for."""
    server.close()
    return smtplib.SMTPServerDisconnected(f"{code} ends the connection")


def _set_timeout(server: smtplib.SMTP, seconds: float) -> None:
    if server.sock is not None:
        server.sock.settimeout(seconds)


def _text(words: bytes) -> str:
    return words.decode("utf-8", "replace")
