"""Which mails an operation is about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mailslice.codec.addresses import NULL_SENDER, checked_address, checked_sender, same
from mailslice.model.errors import BadInput
from mailslice.model.mail import ViewRow


@dataclass(frozen=True, slots=True)
class MailFilter:
    """What is given must all hold; what is None says nothing. Compared as James compares: addresses
    without regard to case, names exactly.

    `sender` `<>`, or the empty text, is the null sender. `older_than` counts from the enqueued
    time. Raises BadInput for what is no address.
    """

    sender: str | None = None
    recipient: str | None = None
    name: str | None = None
    older_than: timedelta | None = None

    def __post_init__(self) -> None:
        if self.sender is not None:
            object.__setattr__(self, "sender", checked_sender(self.sender, "sender") or NULL_SENDER)
        if self.recipient is not None:
            object.__setattr__(self, "recipient", checked_address(self.recipient, "recipient"))
        if self.older_than is not None and self.older_than < timedelta(0):
            raise BadInput(f"older than {self.older_than}: a duration is not negative")

    @property
    def is_empty(self) -> bool:
        """Whether every mail passes."""
        return self == MailFilter()

    def latest(self, now: datetime) -> datetime | None:
        """The last enqueued time that passes, or None when any does."""
        if self.older_than is None:
            return None
        try:
            return now - self.older_than
        except OverflowError:
            return datetime.min.replace(tzinfo=now.tzinfo)

    def matches(self, row: ViewRow, now: datetime) -> bool:
        """Whether the row passes."""
        mail, latest = row.item.mail, self.latest(now)
        return (
            (self.name is None or mail.name == self.name)
            and (
                self.sender is None
                or same(mail.sender, None if self.sender == NULL_SENDER else self.sender)
            )
            and (
                self.recipient is None
                or any(same(recipient, self.recipient) for recipient in mail.recipients)
            )
            and (latest is None or row.enqueued_time <= latest)
        )
