"""Envelopes of new mails, for `mail enqueue`, scripts and services."""

import time
from collections.abc import Iterable, Mapping
from uuid import uuid4

from mailslice.codec.addresses import checked_address, checked_sender
from mailslice.codec.mime import envelope
from mailslice.model.errors import BadInput
from mailslice.model.mail import Mail


def new_mail(
    sender: str | None,
    recipients: Iterable[str],
    *,
    name: str | None = None,
    state: str = "root",
    attributes: Mapping[str, bytes] | None = None,
) -> Mail:
    """An envelope, last updated now. `sender` None, `<>` or empty: the null sender, as of a report.

    `name`: in James' form by default; `state`: James' processor; `attributes`: name -> JSON of
    James' attribute. Raises BadInput for a malformed address, or without recipients.
    """
    if isinstance(recipients, str):
        raise BadInput(f"recipients: {recipients!r} is one text; a list of addresses is wanted")
    recipients = tuple(recipients)
    texts = ("sender", sender or ""), ("name", name or ""), ("state", state)
    for option, text in (*texts, *(("recipient", recipient) for recipient in recipients)):
        if not isinstance(text, str):
            raise BadInput(f"{option}: {text!r} is not allowed; a text is")
    addresses = tuple(checked_address(recipient, "recipient") for recipient in recipients)
    if not addresses:
        raise BadInput("a mail needs at least one recipient")
    milliseconds = time.time_ns() // 1_000_000
    return Mail(
        name=name or f"Mail{milliseconds}-{uuid4()}",
        sender=None if sender is None else checked_sender(sender),
        recipients=addresses,
        state=state,
        last_updated_ns=milliseconds * 1_000_000,
        attributes=dict(attributes or {}),
    )


def mail_of(content: bytes, *, name: str | None = None) -> Mail:
    """An envelope by Return-Path, Sender or From, and To, Cc, Bcc. BadInput: no recipients."""
    if not isinstance(content, bytes | bytearray):
        raise BadInput(f"content: {type(content).__name__} is not allowed; bytes are")
    parsed = envelope(content)
    if not parsed.recipients:
        raise BadInput("the headers name no recipient; give them by new_mail")
    return new_mail(parsed.sender, parsed.recipients, name=name)
