"""The delivery status notification that tells a sender which recipients failed (RFC 3464, in a
multipart/report of RFC 6522). Pure: callers enqueue it.

It has the mail's header and not its body, which a server may have refused.
"""

import email.policy
import email.utils
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage, Message
from uuid import uuid4

from mailslice.codec.content import split
from mailslice.model.errors import BadInput
from mailslice.model.mail import Mail

_MAX_HEADER_BYTES = 64 * 1024
_POLICY = email.policy.SMTPUTF8.clone(max_line_length=None)
"""Leaves a non-ASCII address as it is (RFC 6532): a sender that has one supports SMTPUTF8."""
_STATUS = re.compile(r"[245](?:\.\d{1,3}){2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Failure:
    """A recipient, its status (RFC 3463; another becomes 5.0.0), a reason, the server's answer."""

    recipient: str
    status: str
    reason: str
    diagnostic: str | None = None


def in_doubt(recipient: str) -> Failure:
    """The failure of a recipient in doubt: the worker stopped before it recorded the answer."""
    return Failure(
        recipient,
        "4.4.2",
        "it is not known whether the mail arrived: the system that was sending it stopped before "
        "it could write down the answer, and it is not sent twice",
    )


def report_of(
    mail: Mail, failures: Iterable[Failure], content: bytes | None, *, reporter: str, now: datetime
) -> tuple[Mail, bytes] | None:
    """Envelope and content of the report to the mail's sender. None for the null sender: a report
    is never answered by a report.

    Raises BadInput if a header cannot hold the sender that James' JSON names.
    """
    if not mail.sender:
        return None
    report_id = str(uuid4())
    envelope = Mail(f"report-{report_id}", None, (mail.sender,))
    try:
        return envelope, failure_report(
            content, failures, to=mail.sender, reporter=reporter, report_id=report_id, now=now
        )
    # The email package has no common error class: AttributeError, IndexError, ValueError...
    except Exception as error:
        raise BadInput(
            f"sender of mail {mail.name!r}: no report can be made for it ({type(error).__name__}); "
            "allowed: local@domain"
        ) from error


def failure_report(
    content: bytes | None,
    failures: Iterable[Failure],
    *,
    to: str,
    reporter: str,
    report_id: str,
    now: datetime,
) -> bytes:
    """The report, with CRLF. `reporter`: this host's name; `content` None: the content is lost."""
    failures = tuple(failures)
    report = EmailMessage(_POLICY)
    report["MIME-Version"] = "1.0"
    report["Content-Type"] = 'multipart/report; report-type="delivery-status"'
    report["From"] = f"Mail Delivery System <MAILER-DAEMON@{_line(reporter)}>"
    report["To"] = f"<{_line(to)}>"
    report["Subject"] = "Undelivered mail returned to sender"
    report["Date"] = email.utils.format_datetime(now)
    report["Message-ID"] = f"<{_line(report_id)}@{_line(reporter)}>"
    report["Auto-Submitted"] = "auto-replied"
    report.attach(_text(_explained(failures, reporter)))
    report.attach(_status(failures, reporter, utf8=not to.isascii()))
    report.attach(_header(content))
    return report.as_bytes()


def _explained(failures: tuple[Failure, ...], reporter: str) -> str:
    lines = [f"This is the mail system at {_line(reporter)}.", ""]
    lines += ["Your mail could not be delivered to these recipients:", ""]
    for failure in failures:
        lines += [_line(f"<{failure.recipient}>: {failure.reason}")]
        lines += [f"    {_line(failure.diagnostic)}"] if failure.diagnostic else []
    return "\n".join([*lines, ""])


def _status(failures: tuple[Failure, ...], reporter: str, *, utf8: bool) -> EmailMessage:
    """The part for machines: ASCII (RFC 3464 2.1.1), except addresses and for SMTPUTF8 senders."""
    status = EmailMessage(_POLICY)
    status["Content-Type"] = "message/delivery-status"
    blocks: list[Message[str, str] | str] = [_block({"Reporting-MTA": f"dns; {_line(reporter)}"})]
    for failure in failures:
        kind = "rfc822" if failure.recipient.isascii() else "utf-8"
        status_code = failure.status if _STATUS.fullmatch(failure.status) else "5.0.0"
        recipient = f"{kind}; {_line(failure.recipient)}"
        fields = {"Final-Recipient": recipient, "Action": "failed", "Status": status_code}
        if failure.diagnostic:
            answer = _line(failure.diagnostic)
            answer = answer if utf8 else answer.encode("ascii", "replace").decode()
            fields["Diagnostic-Code"] = f"smtp; {answer}"
        blocks.append(_block(fields))
    status.set_payload(blocks)
    return status


def _block(fields: dict[str, str]) -> EmailMessage:
    block = EmailMessage(_POLICY)
    for name, value in fields.items():
        block[name] = value
    return block


def _header(content: bytes | None) -> EmailMessage:
    if content is None:
        return _text("The content of the mail is lost.\n")
    part = EmailMessage(_POLICY)
    lines = bytes(split(content)[0])[:_MAX_HEADER_BYTES].splitlines()
    header = b"".join(line[:998] + b"\n" for line in lines)  # RFC 5322 2.1.1
    cte = "7bit" if header.isascii() else "8bit"
    part.set_content(header, maintype="text", subtype="rfc822-headers", cte=cte)
    return part


def _text(text: str) -> EmailMessage:
    part = EmailMessage(_POLICY)
    part.set_content(text, cte="7bit" if text.isascii() else "8bit")
    return part


def _line(text: str) -> str:
    """`text` as one printable line of at most 900 bytes."""
    safe = (char if char.isprintable() or char.isspace() else "?" for char in text)
    return " ".join("".join(safe).split()).encode()[:900].decode("utf-8", "ignore")
