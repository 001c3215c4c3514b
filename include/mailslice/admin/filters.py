"""The filter that selects the mails of an operation."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from operator import eq
from typing import Self

from mailslice.codec.addresses import (
    NULL_SENDER,
    checked_address,
    checked_sender,
    domain_of,
    same_address,
)
from mailslice.codec.wildcards import Wildcard, is_pattern
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, Mail, ViewRow

MAX_IDS = 1_000_000
_SHOWN_IDS = 100
_Text = str | Wildcard


@dataclass(frozen=True, slots=True)
class MailFilter:
    """A mail passes if it meets every condition that is not None. Texts and Wildcards are compared
    as James compares: addresses without regard to case, names exactly.

    `sender` `<>`, or the empty text, is the null sender; no pattern matches it. `domain` is that of
    one of the recipients. With empty `ids` no mail passes. `older_than` counts from the enqueued
    time. Raises BadInput for a text that is no address, a negative age, over MAX_IDS ids.
    """

    sender: _Text | None = None
    recipient: _Text | None = None
    name: _Text | None = None
    older_than: timedelta | None = None
    domain: _Text | None = None
    ids: frozenset[EnqueueId] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sender, str):
            object.__setattr__(self, "sender", checked_sender(self.sender, "sender") or NULL_SENDER)
        if isinstance(self.recipient, str):
            object.__setattr__(self, "recipient", checked_address(self.recipient, "recipient"))
        if self.older_than is not None and self.older_than < timedelta(0):
            raise BadInput(f"older than {self.older_than}: a duration is not negative")
        if self.ids is not None and len(self.ids) > MAX_IDS:
            raise BadInput(f"{len(self.ids)} enqueue ids are not allowed; at most {MAX_IDS} are")

    @classmethod
    def of_texts(
        cls,
        *,
        sender: str | None = None,
        recipient: str | None = None,
        domain: str | None = None,
        name: str | None = None,
        older_than: timedelta | None = None,
        ids: Iterable[EnqueueId] | None = None,
        prefix: str = "",
    ) -> Self:
        """The filter for texts that people write: a text with `*` or `?` is a pattern.

        `prefix` stands before a field's name in errors: `--` for options. Raises BadInput, also for
        a blank sender: the null sender is written `<>`.
        """
        if domain is not None and (not domain or "@" in domain or domain != domain.strip()):
            raise BadInput(
                f"{prefix}domain: {domain[:60]!r} is not a domain; allowed: what stands behind the "
                "@ of an address, such as example.net or *.example.net"
            )
        if sender is not None and not sender.strip():
            # An unset variable of a shell would mean every bounce.
            raise BadInput(
                f"{prefix}sender: {sender[:60]!r} is not a sender; allowed: local@domain, a "
                "pattern such as *@example.net, and <>, the null sender"
            )
        given = {"sender": sender, "recipient": recipient, "domain": domain, "name": name}
        texts: dict[str, _Text | None] = {**given}
        checks = {"sender": checked_sender, "recipient": checked_address}
        for field, text in given.items():
            if text is not None and is_pattern(text):
                try:
                    texts[field] = Wildcard(text, ignore_case=field != "name")
                except BadInput as error:
                    raise BadInput(f"{prefix}{field}: {error}") from None
            elif text is not None and field in checks:
                texts[field] = checks[field](text, prefix + field) or NULL_SENDER
        return cls(**texts, older_than=older_than, ids=None if ids is None else frozenset(ids))

    @property
    def is_empty(self) -> bool:
        """Whether every mail passes."""
        return self == MailFilter()

    @property
    def matches_all(self) -> bool:
        """Whether nothing but `older_than` narrows the queue. A pattern such as `*` does not."""
        return self.ids is None and all(
            value is None or (isinstance(value, Wildcard) and value.matches_all)
            for value in (self.sender, self.recipient, self.name, self.domain)
        )

    def latest(self, now: datetime) -> datetime | None:
        """The latest enqueued time that passes; None when any passes."""
        if self.older_than is None:
            return None
        try:
            return now - self.older_than
        except OverflowError:
            return datetime.min.replace(tzinfo=now.tzinfo)

    def matches(self, row: ViewRow, now: datetime) -> bool:
        return self.passes(row.enqueue_id, row.item.mail, row.enqueued_time, now)

    def passes(
        self, enqueue_id: EnqueueId, mail: Mail, enqueued: datetime | None, now: datetime
    ) -> bool:
        """Whether the mail passes. A mail of unknown age does not pass `older_than`."""
        latest = self.latest(now)
        return (
            (self.ids is None or enqueue_id in self.ids)
            and (self.name is None or _is(self.name, mail.name, eq))
            and (self.sender is None or _is_sender(self.sender, mail.sender))
            and (
                self.recipient is None
                or any(_is(self.recipient, one, same_address) for one in mail.recipients)
            )
            and (
                self.domain is None
                or any(_is(self.domain, domain_of(one), same_address) for one in mail.recipients)
            )
            and (latest is None or (enqueued is not None and enqueued <= latest))
        )

    def as_json(self) -> Mapping[str, object]:
        """The conditions, for records of decisions; of many ids the first hundred."""
        conditions: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name == "ids":
                conditions["ids"] = sorted(map(str, value))[:_SHOWN_IDS]
                conditions["idCount"] = len(value)
            elif field.name == "older_than":
                conditions["olderThan"] = format_duration(value)
            else:
                conditions[field.name] = str(value)
        return conditions


def _is(expected: _Text, text: str, equal: Callable[[str, str], bool]) -> bool:
    return expected.matches(text) if isinstance(expected, Wildcard) else equal(text, expected)


def _is_sender(expected: _Text, sender: str | None) -> bool:
    if isinstance(expected, Wildcard):
        return sender is not None and expected.matches(sender)
    return same_address(sender, None if expected == NULL_SENDER else expected)
