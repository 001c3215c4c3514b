"""Mails for James and for mailslice, alike but for their names."""

from __future__ import annotations

from typing import Any

from mailslice.model.mail import Mail

CONTENT = b"Subject: x\r\n\r\nbody\r\n"


def of_mailslice(
    name: str, sender: str | None = "a@example.org", recipient: str = "b@x.test"
) -> tuple[Mail, bytes]:
    """A mail and its content, as mailslice's enqueue takes them."""
    return Mail(name, sender, (recipient,)), CONTENT


def of_james(
    name: str, sender: str | None = "a@example.org", recipient: str = "b@x.test"
) -> dict[str, Any]:
    """A mail as `JamesNode.enqueue` takes it."""
    return {"name": name, "sender": sender, "recipients": [recipient], "mime": CONTENT}
