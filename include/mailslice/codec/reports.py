"""The report that a sender gets of recipients who will not have the mail (RFC 3464, in a
multipart/report of RFC 6522). Pure: it is enqueued by others.

It carries the header of the mail and not its body: a report is not to be larger than its cause, nor
to bring back what somebody refused.
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

_MOST_HEADER_BYTES = 64 * 1024
_POLICY = email.policy.SMTPUTF8.clone(max_line_length=None)
"""An address beyond ASCII stays as it is (RFC 6532): who has one speaks SMTPUTF8."""
_STATUS = re.compile(r"[245](?:\.\d{1,3}){2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Failure:
    """A recipient, its status (RFC 3463; else 5.0.0), a plain reason, and the server's words."""

    recipient: str
    status: str
    reason: str
    diagnostic: str | None = None


def in_doubt(recipient: str) -> Failure:
    """Of a recipient whose sender stopped before the answer was written down."""
    return Failure(
        recipient,
        "4.4.2",
        "it is not known whether the mail arrived: the system that was sending it stopped before "
        "it could write down the answer, and it is not sent twice",
    )


def report_of(
    mail: Mail, failures: Iterable[Failure], content: bytes | None, *, reporter: str, now: datetime
) -> tuple[Mail, bytes] | None:
    """The report to the mail's sender, to be enqueued: envelope and content. None for the null
    sender: no report is ever answered by another.

    Raises BadInput when none can be made: James' JSON may name a sender that cannot stand in a
    header.
    """
    if not mail.sender:
        return None
    report_id = str(uuid4())
    envelope = Mail(f"report-{report_id}", None, (mail.sender,))
    try:
        return envelope, failure_report(
            content, failures, to=mail.sender, reporter=reporter, report_id=report_id, now=now
        )
    # The email package has no common one: AttributeError, IndexError, ValueError...
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
    """The whole report, CRLF line ends. `reporter`: this host; content None: it is lost."""
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
    """For machines: ASCII (RFC 3464 2.1.1), but for addresses, and for SMTPUTF8 senders."""
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
    lines = bytes(split(content)[0])[:_MOST_HEADER_BYTES].splitlines()
    header = b"".join(line[:998] + b"\n" for line in lines)  # RFC 5322 2.1.1
    cte = "7bit" if header.isascii() else "8bit"
    part.set_content(header, maintype="text", subtype="rfc822-headers", cte=cte)
    return part


def _text(text: str) -> EmailMessage:
    part = EmailMessage(_POLICY)
    part.set_content(text, cte="7bit" if text.isascii() else "8bit")
    return part


def _line(text: str) -> str:
    """One line of at most 900 bytes, whatever a server or an address put into it."""
    safe = (char if char.isprintable() or char.isspace() else "?" for char in text)
    return " ".join("".join(safe).split()).encode()[:900].decode("utf-8", "ignore")
