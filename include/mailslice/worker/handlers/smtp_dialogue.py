"""One SMTP transaction with the next server: MAIL, RCPT..., DATA, the mail, and its answers.

The first digit of an answer decides (RFC 5321 4.2.1, 4.3.2). A reply that cannot be an answer to
its command ends the connection: replies may be out of step, and the next 250 may belong to an
earlier command. With PIPELINING commands go in one flight (RFC 2920); replies come in their order.

The recipients are marked as sending after 354, before the first byte of the mail, and as sent after
the mail's own 2yz. Before the last byte is sent no recipient has the mail. After that only a
refusal proves this; everything else leaves the recipients in doubt.
"""

import smtplib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event

from mailslice.model.mail import RecipientHeader
from mailslice.worker.handlers.next_hop import CLOSING, Connection, StaleConnection
from mailslice.worker.handlers.smtp_refusals import (
    BAD_RECIPIENT,
    BAD_SENDER,
    NO_ANSWER,
    NO_UTF8,
    Refusals,
)
from mailslice.worker.handlers.smtp_wire import Body, data, header_block, is_sendable
from mailslice.worker.stages.handler_stage import BlockingStage

_GO_ON = 354
_TOO_MANY_RECIPIENTS = 552
"""As an answer to RCPT it means "later" (RFC 5321 4.5.3.1.10)."""
_FLIGHT = 100
"""Commands sent before their replies are read: the replies must fit into network buffers."""
BEGIN_WITHIN = 5 * 60.0
"""Seconds, from when the worker got the mail (`Timeouts.begin_within`)."""


_Command = tuple[str, tuple[str, ...], Callable[[tuple[str, ...]], None]]
"""The command, its recipients, and the function that handles the reply."""


class Stopping(Exception):
    """The worker ends, and the mail was not sent whole: no recipient has it."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One MAIL, RCPT..., DATA."""

    recipients: tuple[str, ...]
    headers: tuple[RecipientHeader, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in seconds: `step` for one command, or 64 KiB of a mail; `answer` for the
    answer to a whole mail. `began`: when the worker got it. `stopping`: set when the worker ends.

    No transaction or recipient begins after `begin_within`, no mail is sent after `send_within`:
    the last answer has to come within 30 minutes. After that RabbitMQ takes a message back
    (`consumer_timeout`), and another worker would send the mail, too.
    """

    step: float
    answer: float
    began: float = field(default_factory=time.monotonic)
    stopping: Event = field(default_factory=Event)
    begin_within: float = BEGIN_WITHIN
    send_within: float = 15 * 60.0

    @property
    def is_late(self) -> bool:
        """Whether it is too late to begin a transaction or to name a recipient."""
        return time.monotonic() - self.began > self.begin_within

    def of_replies(self, count: int) -> float:
        """Seconds for this many replies, which a server may send together (RFC 2920 3.2)."""
        remaining = self.begin_within - (time.monotonic() - self.began)
        return max(self.step, min(count * self.step, remaining))

    def check(self) -> None:
        """Called before each reply and piece. Raises Stopping, or TimeoutError (`send_within`)."""
        if self.stopping.is_set():
            raise Stopping
        if time.monotonic() - self.began > self.send_within:
            raise TimeoutError(f"not sent whole within {self.send_within:.0f} s")


def send(
    connection: Connection,
    sender: str | None,
    transaction: Transaction,
    body: Body,
    *,
    refused: Refusals,
    stage: BlockingStage,
    timeouts: Timeouts,
) -> None:
    """Runs one transaction; adds the recipients that were not served to `refused`.

    Raises when the connection is to be closed: then no recipient was served or, after the last
    byte, it is unknown. Raises StaleConnection when the transaction is to be repeated for
    recipients without an answer, Stopping when it was abandoned because the worker ends.
    """
    sender = sender or ""
    recipients = _addressable(connection, sender, transaction.recipients, refused)
    if not recipients:
        return
    head = header_block(transaction.headers)
    mail = _mail_command(connection, sender, recipients, body, len(head) + body.size)
    connection.begin()
    envelope = _Envelope(connection, recipients, refused)
    try:
        envelope.exchange(mail, timeouts)
    except smtplib.SMTPServerDisconnected as error:
        connection.close()
        rest = refused.unanswered(recipients)
        if len(rest) == len(recipients) or timeouts.is_late or timeouts.stopping.is_set():
            raise
        if not rest:
            return
        raise StaleConnection("ended after refusals") from error
    accepted, code, words = envelope.accepted, envelope.code, envelope.words
    if code == _GO_ON and not accepted:
        connection.send(b".\r\n")  # a mail for nobody: the server refuses it (RFC 2920 3.1)
        _answer(connection, (), refused)
        connection.is_unclean = False
    elif code == _GO_ON:
        stage.sending(accepted)
        pieces = data(head, body.content)
        code, words = _send_content(connection, pieces, accepted, stage, timeouts)
        if code // 100 == 2:
            connection.is_unclean = False  # after a refusal RSET finds replies to unread lines
            stage.sent(accepted)
            refused.accepted = f"{code} {words}"
            return
        stage.not_sent(accepted)
    refused.add(accepted, code, words)


class _Envelope:
    """Sends MAIL, RCPT..., DATA. Keeps the accepted recipients and the answer to DATA."""

    def __init__(
        self, connection: Connection, recipients: tuple[str, ...], refused: Refusals
    ) -> None:
        self._connection = connection
        self._recipients = recipients
        self._refused = refused
        self._mail_refused = False
        self.accepted: list[str] = []
        self.code, self.words = NO_ANSWER, ""

    def exchange(self, mail: str, timeouts: Timeouts) -> None:
        """Sends the commands, one at a time without PIPELINING; no DATA without a recipient."""
        hear = self._on_rcpt_reply
        commands: deque[_Command] = deque((f"RCPT TO:<{r}>", (r,), hear) for r in self._recipients)
        commands.appendleft((mail, self._recipients, self._on_mail_reply))
        commands.append(("DATA", (), self._on_data_reply))
        if self._connection.is_unclean:
            commands.appendleft(("RSET", (), self._on_rset_reply))
        at_once = _FLIGHT if self._connection.offers("pipelining") else 1
        while commands:
            flight = [commands.popleft() for _ in range(min(at_once, len(commands)))]
            self._connection.send_commands([command for command, _, _ in flight])
            for number, (_, recipients, handle_reply) in enumerate(flight):
                timeouts.check()
                self._connection.set_timeout(timeouts.of_replies(len(flight) - number))
                handle_reply(recipients)
            if self._mail_refused or (len(commands) == 1 and not self.accepted):
                return
            while self.accepted and timeouts.is_late and len(commands) > 1:
                self._refused.unnamed += commands.popleft()[1]

    def _on_rset_reply(self, _: tuple[str, ...]) -> None:
        """The reply to RSET: a server that refuses it would refuse MAIL, too."""
        if (code := self._connection.reply()[0]) // 100 != 2:
            raise self._connection.out_of_step(code)

    def _on_mail_reply(self, recipients: tuple[str, ...]) -> None:
        code, words = _answer(self._connection, recipients, self._refused)
        self._connection.mark_answered()
        if code // 100 != 2:
            self._mail_refused = True
            self._refused.add(recipients, code, words)

    def _on_rcpt_reply(self, recipient: tuple[str, ...]) -> None:
        code, words = _answer(self._connection, recipient, self._refused)
        if self._mail_refused:
            return  # 503, for there is no mail
        if code // 100 == 2:
            self.accepted.extend(recipient)
        else:
            code = 452 if code == _TOO_MANY_RECIPIENTS else code
            self._refused.add(recipient, code, words)

    def _on_data_reply(self, _: tuple[str, ...]) -> None:
        self.code, self.words = _answer(self._connection, self.accepted, self._refused, _GO_ON)


def _send_content(
    connection: Connection,
    pieces: Iterable[bytes],
    recipients: list[str],
    stage: BlockingStage,
    timeouts: Timeouts,
) -> tuple[int, str]:
    """Sends the pieces. The answer to the mail, or a refusal before its last byte has gone.

    Any other failure before the last byte raises after `stage.not_sent`, a missing answer without.
    """
    try:
        for piece in pieces:
            timeouts.check()
            connection.send_content(piece)
    except BaseException as error:
        code, words = NO_ANSWER, ""
        if isinstance(error, smtplib.SMTPServerDisconnected):
            with suppress(OSError):
                connection.set_timeout(1)
                code, words = connection.reply()
        connection.close()
        if code // 100 in {4, 5}:
            return code, words
        stage.not_sent(recipients)
        raise
    connection.set_timeout(timeouts.answer)
    code, words = connection.reply()
    if code // 100 not in {2, 4, 5}:
        raise connection.out_of_step(code)
    connection.set_timeout(timeouts.step)
    return code, words


def _answer(
    connection: Connection, recipients: Sequence[str], refused: Refusals, success: int | None = None
) -> tuple[int, str]:
    """The reply: a success (2yz, or only `success` if it is given), or a refusal (4yz, 5yz).

    Raises for any other reply, and when the server closes (421). A 421 is the answer for the
    `recipients` of this command; the others have none.
    """
    code, words = connection.reply()
    if code == CLOSING:
        refused.add(recipients, code, words)
    good = code // 100 == 2 if success is None else code == success
    if code == CLOSING or not (good or 400 <= code < 600):
        raise connection.out_of_step(code)
    return code, words


def _addressable(
    connection: Connection, sender: str, recipients: tuple[str, ...], refused: Refusals
) -> tuple[str, ...]:
    """The recipients that a command can name: beyond ASCII (also the sender's) needs SMTPUTF8."""
    utf8 = connection.offers("smtputf8")
    good = []
    for recipient in refused.unanswered(recipients):
        if not is_sendable(recipient):
            refused.add_local(recipient, BAD_RECIPIENT)
        elif not is_sendable(sender):
            refused.add_local(recipient, BAD_SENDER)
        elif not (utf8 or (recipient.isascii() and sender.isascii())):
            refused.add_local(recipient, NO_UTF8)
        else:
            refused.for_now.pop(recipient, None)  # the answer of a connection that ended
            refused.for_good.pop(recipient, None)
            refused.local.pop(recipient, None)
            good.append(recipient)
    return tuple(good)


def _mail_command(
    connection: Connection, sender: str, recipients: tuple[str, ...], body: Body, size: int
) -> str:
    words = [f"MAIL FROM:<{sender}>"]
    if connection.offers("size"):
        words.append(f"SIZE={size}")
    if connection.offers("8bitmime") and not body.is_ascii:
        words.append("BODY=8BITMIME")
    if not all(address.isascii() for address in (sender, *recipients)):
        words.append("SMTPUTF8")
    return " ".join(words)
