"""Selections of mails for actions. A preview fixes their ids; a digest names request and ids."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

from mailslice.actions.request import DELAYED_ONLY, WITHOUT_PREVIEW, ActionRequest, MailAction
from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.moves import require_delays
from mailslice.maintenance.artifacts import Artifacts, iso
from mailslice.model.batches import batches
from mailslice.model.clock import Clock
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadInput, Refused
from mailslice.model.mail import EnqueueId, ViewRow
from mailslice.stores import Stores
from mailslice.view.live_rows import BrowseDeadline

PREVIEWS = "previews"
"""The folder of previews, in the artifacts."""
MAX_PREVIEWED = 100_000
"""Mails in one preview, at most. If more match, it has the oldest."""
SAMPLE = 10
GOOD_FOR = timedelta(hours=1)
"""How old a preview may be when a run uses it."""
MAX_KEPT = 200
_OLDEST = timedelta(days=36_500)
_MEASURED = 200
"""Mails whose content is measured. The size of more mails is extrapolated."""
_AT_ONCE = 500
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Selection:
    """The mails of a request: those of `ids`, or those that match and were enqueued by `before`."""

    request: ActionRequest
    at: datetime
    ids: tuple[EnqueueId, ...] | None = None
    before: datetime | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the request, `ids` and `before`. It does not depend on `at`."""
        return hashlib.sha256(json.dumps(self._facts(), sort_keys=True).encode()).hexdigest()

    def mail_filter(self, now: datetime) -> MailFilter:
        """The filter that the action uses."""
        if self.ids is not None:
            return MailFilter(ids=frozenset(self.ids))
        requested = self.request.texts.parsed()
        if self.before is None or self.request.action in DELAYED_ONLY:
            return requested
        age = min(requested.older_than or timedelta(0), _OLDEST) + (now - self.before)
        return replace(requested, older_than=max(timedelta(0), age))  # two clocks may differ

    def as_json(self) -> dict[str, Any]:
        """The content of its file."""
        return {**self._facts(), "at": iso(self.at)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From `as_json`. Raises ValueError, TypeError or KeyError for other values."""
        fields = {name: values[name] for name in ("queue", "action", "to", "run", "lasts")}
        request = ActionRequest.of({**values["filter"], **fields})
        ids, before = values["ids"], values["before"]
        return cls(
            request,
            datetime.fromisoformat(values["at"]),
            None if ids is None else tuple(EnqueueId(UUID(hex=id_)) for id_ in ids),
            None if before is None else datetime.fromisoformat(before),
        )

    def _facts(self) -> dict[str, Any]:
        ids = None if self.ids is None else [id_.hex for id_ in self.ids]
        return {**self.request.as_json(), "ids": ids, "before": iso(self.before)}


@dataclass(frozen=True, slots=True)
class Preview:
    """The mails that an action would cover. `size`: bytes of content, exact if `measured`.

    `cut`: why these are not all mails that match; `share`: of the queue's mails; None: unknown.
    """

    selection: Selection
    oldest: datetime | None
    sample: Sequence[ViewRow]
    size: int
    measured: bool
    cut: str | None
    share: float | None

    @property
    def count(self) -> int:
        return len(self.selection.ids or ())


def preview(
    stores: Stores,
    request: ActionRequest,
    clock: Clock,
    *,
    limit: int = MAX_PREVIEWED,
    seconds: float = 10.0,
) -> Preview:
    """The oldest mails that match: at most `limit`, and only those found within `seconds`.

    Raises BadInput for an action without a preview, Refused for a delay that no worker would end.
    """
    if request.action in WITHOUT_PREVIEW:
        raise BadInput(f"{request.action} has no preview: its digest is `any`")
    if request.action is MailAction.DELAY:
        require_delays(stores, request.queue, clock)
    queue, now = MailQueue(stores, request.queue, clock), clock()
    deadline, mail_filter = BrowseDeadline.in_seconds(seconds), request.texts.parsed()
    narrows = mail_filter.ids is not None or isinstance(mail_filter.name, str)
    browsed = queue.browse(mail_filter if narrows else MailFilter(), deadline=deadline)
    ids: list[EnqueueId] = []
    first: list[ViewRow] = []
    cut = None
    for rows in batches(browsed, _AT_ONCE):
        chosen = _eligible(stores, request, [row for row in rows if mail_filter.matches(row, now)])
        ids += (row.enqueue_id for row in chosen)
        first += chosen[: _MEASURED - len(first)]
        if len(ids) > limit:
            del ids[limit:]
            cut = f"these are the oldest {limit:,}"
            break
    else:
        if deadline.stopped_at is not None:
            at = f"{deadline.stopped_at:%Y-%m-%d %H:%M} UTC"
            cut = f"looked for {seconds:.0f} s, up to mails of {at}"
    size = _size(stores, first[: len(ids)])
    if len(ids) > len(first):
        size = size * len(ids) // len(first)
    summary = queue.live_summary(limit)
    return Preview(
        Selection(request, now, tuple(sorted(ids))),
        first[0].enqueued_time if first else None,
        first[:SAMPLE],
        size,
        len(ids) <= len(first),
        cut,
        min(1.0, len(ids) / summary.size) if summary and summary.size else None,
    )


def keep(location: Artifacts, selection: Selection) -> str:
    """Write the preview's file. Returns its digest. Keeps the newest 200 previews of one day."""
    times = location.times(PREVIEWS)
    newest = sorted(times, key=lambda name: times[name], reverse=True)
    for name in newest:
        old = times[name] < selection.at - timedelta(days=1)
        if old or name in newest[MAX_KEPT - 1 :]:
            location.remove(name)
    location.write(_file(selection.digest), json.dumps(selection.as_json()).encode())
    return selection.digest


def previewed(location: Artifacts, request: ActionRequest, digest: str, now: datetime) -> Selection:
    """The selection of the preview with this digest.

    Raises Refused if it is missing, older than an hour, changed, or of another request.
    """
    data = location.read(_file(digest)) if _DIGEST.fullmatch(digest) else None
    if data is None:
        raise Refused(
            f"no preview has the digest {digest[:64]!r}: it was made elsewhere, or is over a day "
            "old; preview again"
        )
    selection = None
    with suppress(ValueError, TypeError, KeyError, RecursionError, AttributeError):
        selection = Selection.of(json.loads(data))
    if selection is None or selection.digest != digest:
        raise Refused(f"the preview {digest} is not as it was written; preview again")
    if selection.request != request:
        requested, shown = request.as_json(), selection.request.as_json()
        differ = ", ".join(
            f"{name} is {requested[name]!r}, previewed was {shown[name]!r}"
            for name in requested
            if requested[name] != shown[name]
        )
        raise Refused(f"the preview {digest[:12]} is of another request: {differ}; preview again")
    if (age := now - selection.at) > GOOD_FOR:
        raise Refused(
            f"the preview {digest[:12]} is {format_duration(age)} old; allowed: "
            f"{format_duration(GOOD_FOR)}; preview again"
        )
    return selection


def _file(digest: str) -> str:
    return f"{PREVIEWS}/{digest}.json"


def _eligible(stores: Stores, request: ActionRequest, rows: Sequence[ViewRow]) -> Sequence[ViewRow]:
    """The rows; for an action on delayed mails only the delayed ones. Creates no table."""
    if request.action not in DELAYED_ONLY:
        return rows
    states = stores.delay_states(request.queue, [row.enqueue_id for row in rows])
    return [row for row in rows if (state := states.get(row.enqueue_id)) and state.due]


def _size(stores: Stores, rows: Sequence[ViewRow]) -> int:
    blobs = [id_ for row in rows for id_ in (row.item.header_blob_id, row.item.body_blob_id)]
    heads = stores.blobs.heads(blobs) if blobs else {}
    return sum(head.size for head in heads.values() if head is not None)
