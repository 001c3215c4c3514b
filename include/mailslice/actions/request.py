"""A request for an action: which action, on which mails of which queue."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from mailslice.admin.filters import MailFilter
from mailslice.codec.wildcards import is_pattern
from mailslice.model.delay_levels import LONGEST_DELAY
from mailslice.model.durations import parse_duration
from mailslice.model.errors import BadInput
from mailslice.model.holds import parse_hold_domain
from mailslice.model.mail import EnqueueId, QueueName, parse_enqueue_id
from mailslice.model.names import is_broken, queue_name

MAIL_ACTIONS = "mail_actions"
"""Id of the DAG, and name of its folder of runs."""
MAX_GIVEN = 10_000
"""Ids that one request may name."""
_LONGEST_TEXT = 1000
_ATTEMPT = re.compile(r"[0-9]{1,9}")
LEAST_DELAY = timedelta(minutes=1)
LEAST_HOLD, LONGEST_HOLD = timedelta(seconds=1), timedelta(days=36500)


class MailAction(StrEnum):
    """An action. `clear`, `flush` and `undelete` take no filter."""

    DELETE = "delete"
    CLEAR = "clear"
    FLUSH = "flush"
    RETRY = "retry"
    DELAY = "delay"
    MOVE = "move"
    REPUBLISH = "republish"
    UNDELETE = "undelete"
    HOLD = "hold"
    RELEASE = "release"
    RELEASE_STUCK = "release_stuck"
    DISCARD_STUCK = "discard_stuck"


DELAYED_ONLY = {MailAction.FLUSH, MailAction.RETRY}
_WITHOUT_FILTER = {MailAction.CLEAR, MailAction.FLUSH, MailAction.UNDELETE}
_HOLDS = {MailAction.HOLD, MailAction.RELEASE}
STUCK = {MailAction.RELEASE_STUCK, MailAction.DISCARD_STUCK}
"""Actions on mails in quarantine. They name each mail: `ids` are ID/ATTEMPT, or ID alone."""
WITHOUT_PREVIEW = {MailAction.REPUBLISH, MailAction.UNDELETE, *_HOLDS, *STUCK}
"""Actions that name their mails, select them by their own proofs, or select none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailTexts:
    """A filter as people write it: fields are the flags of `queue delete`. Empty ones are unset."""

    sender: str | None = None
    recipient: str | None = None
    domain: str | None = None
    name: str | None = None
    older_than: str | None = None
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.ids) > MAX_GIVEN:
            raise BadInput(f"{len(self.ids)} ids are not allowed; at most {MAX_GIVEN} are")

    @property
    def filled(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name, value in asdict(self).items() if value}

    def parsed(self) -> MailFilter:
        """The filter; `*` and `?` are wildcards. Raises BadInput naming the field."""
        values = self.filled
        if self.older_than:
            values["older_than"] = parse_duration(self.older_than, "older_than")
        if self.ids:
            values["ids"] = [parse_enqueue_id(id_, "ids") for id_ in self.ids]
        return MailFilter.of_texts(**values)


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """One request. `to`: the target queue of a move. `run`: the delete that an undelete reverts.
    `lasts`: how long a hold lasts, or a delay keeps its mails back.

    Raises BadInput for fields that do not fit the action.
    """

    queue: QueueName
    action: MailAction
    texts: MailTexts
    to: QueueName | None = None
    run: str | None = None
    lasts: str | None = None

    def __post_init__(self) -> None:
        given = self.texts.filled
        self.parsed()
        if self.action in _WITHOUT_FILTER and given:
            raise BadInput(f"{self.action} takes no filter: {', '.join(given)} is not allowed")
        if self.action is MailAction.DELETE and not set(given) - {"older_than"}:
            raise BadInput(
                "delete: give at least one of sender, recipient, domain, name and ids "
                "(older_than only narrows them; clear deletes all)"
            )
        if self.action is MailAction.REPUBLISH and set(given) - {"older_than"}:
            raise BadInput("republish: the only filter allowed is older_than")
        if self.action in STUCK and set(given) != {"ids"}:
            raise BadInput(
                f"{self.action}: give the ids of mails in quarantine, and no other filter"
            )
        if self.action in _HOLDS:
            if set(given) - {"domain"}:
                raise BadInput(f"{self.action}: the only filter allowed is domain")
            parse_hold_domain(self.texts.domain or "all.example")
        self._check_lasts()
        if (self.action is MailAction.MOVE) != (self.to is not None):
            raise BadInput(f"{self.action}: to={self.to!r}; a move needs `to`, others have none")
        if (self.action is MailAction.UNDELETE) != (self.run is not None):
            raise BadInput(f"{self.action}: run={self.run!r}; only an undelete needs `run`")
        if self.to == self.queue:
            raise BadInput(f"move: queue and to are one queue, {self.queue!r}; two are allowed")

    @property
    def rows(self) -> list[tuple[EnqueueId, int | None]]:
        """Id and attempt of mails in quarantine. Attempt None: the only one that is there."""
        return [_row(row) for row in self.texts.ids]

    def parsed(self) -> MailFilter:
        """The filter; for mails in quarantine it has only the ids. Raises BadInput."""
        if self.action not in STUCK:
            return self.texts.parsed()
        return MailFilter(ids=frozenset(id_ for id_, _ in self.rows))

    def _check_lasts(self) -> None:
        delays = self.action is MailAction.DELAY
        if self.lasts is None and not delays:
            return
        if not delays and self.action is not MailAction.HOLD:
            raise BadInput(f"{self.action}: lasts={self.lasts!r}; only hold and delay take it")
        lasts = parse_duration(self.lasts or "", "lasts")
        if delays and not LEAST_DELAY <= lasts <= LONGEST_DELAY:
            raise BadInput(f"delay: lasts={self.lasts!r}; allowed is a time from 1m to 30d")
        if not LEAST_HOLD <= lasts <= LONGEST_HOLD:
            raise BadInput(f"hold: lasts={self.lasts!r}; allowed is a time from 1s to 36500d")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From a form or from params: `queue`, `action`, `to`, `run`, `lasts`, fields of MailTexts.

        Checks `reason`, too, and ignores other fields. Raises BadInput.
        """
        names = [field.name for field in fields(MailTexts) if field.name != "ids"]
        texts = {name: values.get(name) for name in (*names, "run", "reason")}
        for name, text in texts.items():
            is_text = text is None or (isinstance(text, str) and len(text) <= _LONGEST_TEXT)
            if not is_text or is_broken(text or ""):
                allowed = f"a text of at most {_LONGEST_TEXT} characters, in UTF-8"
                raise BadInput(f"{name}: allowed is {allowed}")
        ids, action, to = values.get("ids"), str(values.get("action")), values.get("to")
        if ids is not None and not (ids and isinstance(ids, list | tuple)):
            raise BadInput("ids: allowed is a list of enqueue ids, not empty")
        if action not in set(MailAction):
            raise BadInput(f"action {action[:40]!r}; allowed: {', '.join(MailAction)}")
        named = {
            row_name(*_row(str(one))) if action in STUCK else str(parse_enqueue_id(str(one), "ids"))
            for one in ids or ()
        }
        return cls(
            queue_name(str(values.get("queue") or "")),
            MailAction(action),
            MailTexts(**{name: texts[name] or None for name in names}, ids=tuple(sorted(named))),
            queue_name(str(to)) if to else None,
            (texts["run"] or "")[:200] or None,
            str(values["lasts"])[:50] if values.get("lasts") else None,
        )

    def as_json(self) -> dict[str, Any]:
        """The request as previews store it."""
        texts = self.texts.filled
        if "ids" in texts:
            texts["ids"] = list(texts["ids"])
        values = {name: getattr(self, name) for name in ("queue", "to", "run", "lasts")}
        return {**values, "action": self.action.value, "filter": texts}


def row_name(enqueue_id: EnqueueId, attempt: int | None) -> str:
    """The text that names a row of quarantine: an id may have several attempts there."""
    return str(enqueue_id) if attempt is None else f"{enqueue_id}/{attempt}"


def _row(text: str) -> tuple[EnqueueId, int | None]:
    id_, slash, attempt = text.partition("/")
    if slash and not _ATTEMPT.fullmatch(attempt):
        raise BadInput(
            f"ids: {text[:60]!r} names no mail in quarantine; allowed: a UUID, as stuck list shows "
            "it, or UUID/ATTEMPT"
        )
    return parse_enqueue_id(id_, "ids"), int(attempt) if slash else None


def literal(text: str) -> str:
    """`text` escaped, so that as a filter it matches only itself."""
    return re.sub(r"([*?\\])", r"\\\1", text) if is_pattern(text) else text


def of_literal(text: str | None) -> str | None:
    """The inverse of `literal`."""
    return re.sub(r"\\(.)", r"\1", text) if text and is_pattern(text) else text
