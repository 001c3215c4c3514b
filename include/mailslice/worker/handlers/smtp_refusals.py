"""The recipients that were not served, and the answers of the next server."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mailslice.codec.reports import Failure
from mailslice.worker.events import redacted
from mailslice.worker.handlers.next_hop import CLOSING

NO_ANSWER = 0
NO_REFUSAL = frozenset({NO_ANSWER, 530, 534, 535, 538})
"""The codes that refuse no mail: without an answer, or the next hop wants AUTH or TLS of us."""
NO_UTF8, BAD_RECIPIENT, BAD_SENDER = "5.6.7", "5.1.3", "5.1.7"
_BAD_ADDRESS = 553
_MAX_ANSWERS, _LONGEST_ANSWER = 3, 200
_STATUS = re.compile(r"(5\.\d{1,3}\.\d{1,3})\b", re.ASCII)
_LOCAL_REFUSALS = {
    NO_UTF8: (
        "no SMTPUTF8",
        (
            "the next server takes no addresses beyond ASCII (SMTPUTF8), "
            "and the mail goes to or comes from one"
        ),
    ),
    BAD_RECIPIENT: ("bad address", "no mail server can be told this address"),
    BAD_SENDER: ("bad sender", "no mail server can be told the address of the mail's sender"),
}
"""Status (RFC 3463) of a refusal by the relay itself -> short name, and text for the sender."""


@dataclass(slots=True)
class Refusals:
    """The recipients that were not served: recipient -> SMTP code, 0 = no answer."""

    for_now: dict[str, int] = field(default_factory=dict)
    for_good: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    """Recipient -> text of the server's answer, for reports."""
    local: dict[str, str] = field(default_factory=dict)
    """Recipient -> status of a refusal by the relay itself. The recipient is in `for_good`, too."""
    unnamed: list[str] = field(default_factory=list)
    """Recipients that were not named to the server, because there was no time."""
    accepted: str = ""
    """The server's last answer to a mail that it took."""

    def add(self, recipients: Iterable[str], code: int, words: str = "") -> None:
        """5yz is permanent, unless it wants AUTH or TLS. Everything else is temporary."""
        is_final = 500 <= code < 600 and code not in NO_REFUSAL
        kind = self.for_good if is_final else self.for_now
        new = [recipient for recipient in recipients if recipient not in self.for_good]
        kind.update(dict.fromkeys(new, code))
        self.words.update(dict.fromkeys(new, words))

    def add_local(self, recipient: str, status: str) -> None:
        """Refuses permanently, without asking the server."""
        self.add((recipient,), _BAD_ADDRESS)
        self.local[recipient] = status

    def unanswered(self, recipients: Iterable[str]) -> list[str]:
        """Recipients without an answer of the server; 421 is about the connection."""
        codes = self.for_now | self.for_good
        return [r for r in recipients if r in self.local or codes.get(r, CLOSING) == CLOSING]

    def failure(self, recipient: str) -> Failure:
        """The entry of a report for a recipient that is given up."""
        if (status := self.local.get(recipient)) is not None:
            return Failure(recipient, status, _LOCAL_REFUSALS[status][1])
        code = self.for_good.get(recipient, self.for_now.get(recipient, NO_ANSWER))
        words = self.words.get(recipient, "")
        diagnostic = " ".join(f"{code} {words}".split()) if code != NO_ANSWER else None
        if recipient not in self.for_good:
            why = "it could not be delivered for too long, and is given up"
            return Failure(recipient, "4.4.7", why, diagnostic)
        remote = _STATUS.match(words)
        why, status = "the next server refused it for good", remote[1] if remote else "5.0.0"
        return Failure(recipient, status, why, diagnostic)

    def counted(self) -> str:
        """The answers and how often each was given, without addresses."""
        named = Counter((code, name) for code, name, _ in self._answers())
        return ", ".join(f"{name} for {count}" for (_, name), count in sorted(named.items()))

    def answers(self) -> str:
        """The answers with the server's words, for the log: without addresses, three at most."""
        texts = (redacted(f"{name} {words}") for _, name, words in self._answers())
        named = Counter(text[:_LONGEST_ANSWER] for text in texts)
        shown = [f"{answer} (for {count})" for answer, count in named.most_common(_MAX_ANSWERS)]
        return "; ".join([*shown, *(["..."] if len(named) > _MAX_ANSWERS else [])])

    def _answers(self) -> Iterator[tuple[int, str, str]]:
        """For each recipient: the code, its name, the server's words."""
        for recipient, code in (self.for_now | self.for_good).items():
            local = self.local.get(recipient)
            name = _LOCAL_REFUSALS[local][0] if local else str(code or "no answer")
            yield code, name, self.words.get(recipient, "")

    def __contains__(self, recipient: str) -> bool:
        return recipient in self.for_now or recipient in self.for_good
