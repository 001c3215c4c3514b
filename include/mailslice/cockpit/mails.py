"""The list of a queue's mails: what is asked for, a page of it, and all of it as a file."""

import csv
import io
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mailslice.actions.request import MailTexts
from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.cockpit.facts import Facts
from mailslice.codec.row import epoch_ms, instant
from mailslice.codec.shown import shortened
from mailslice.codec.wildcards import Wildcard
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.overview import QueueOverview
from mailslice.model.batches import batches
from mailslice.model.delay_levels import LONGEST_DELAY
from mailslice.model.durations import parse_duration
from mailslice.model.errors import BadInput
from mailslice.model.mail import EnqueueId, QueueName, ViewRow, parse_enqueue_id
from mailslice.model.verdicts import Verdict
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DelayState
from mailslice.view.live_rows import BrowseDeadline, PageReading, Position, settled_before

PAGE = 100
"""Mails of one page."""
_SECONDS = 0.1
"""Seconds for which a page may search; then it says that it did not read all."""
EXPORT_SECONDS = 10.0
MAX_EXPORTED = 10_000
"""Most mails of one file. A filter by verdict knows only this many mails of the verdict, too."""
_LONGEST_CELL = 2000
COLUMNS = "id enqueued name sender recipients state due attempts answer".split()
ALL = "all"
"""Instead of a slice's start: also reads slices that were counted empty."""


Text = Annotated[str | None, Field(max_length=320), AfterValidator(lambda text: text or None)]


class MailsFilter(BaseModel):
    """The form above the list of mails."""

    model_config = ConfigDict(frozen=True)

    sender: Text = None
    recipient: Text = None
    domain: Text = None
    mail: Text = None
    older_than: Text = None
    state: Text = None
    """As James names it; `*` and `?` are wildcards."""
    due: Text = None
    """Only delayed mails that are due within this duration."""
    verdict: Text = None
    """Only mails with this verdict of the newest audit."""
    slice: Text = None
    """Only mails of the slice with this start; `all`: no slice is left out."""

    @property
    def any(self) -> bool:
        return self not in {MailsFilter(), MailsFilter(slice=ALL)}

    @property
    def of_actions(self) -> dict[str, Any] | None:
        """The given fields by the names that actions use; None when actions lack one of them."""
        fields = {name: text for name, text in self if text}
        if fields.get("slice") == ALL:
            del fields["slice"]
        if fields.keys() & {"state", "due", "verdict", "slice"}:
            return None
        return {"name" if name == "mail" else name: text for name, text in fields.items()}

    def parsed(self) -> MailFilter:
        """The part that actions have, too. Raises BadInput naming the field."""
        same = {name: getattr(self, name) for name in ("sender", "recipient", "domain")}
        return MailTexts(name=self.mail, older_than=self.older_than, **same).parsed()

    @property
    def slice_start(self) -> datetime | None:
        """None for all slices. Raises BadInput for a text that is no time with a zone."""
        if self.slice is None or self.slice == ALL:
            return None
        with suppress(ValueError):
            start = datetime.fromisoformat(self.slice)
            if start.tzinfo is not None:
                return start
        raise BadInput(f"slice {self.slice!r}: allowed is a time as 2026-11-23T11:00:00+00:00")


@dataclass(frozen=True, slots=True)
class MailsPage:
    """Envelopes. `cut`: why mails may be missing; `after`: where the next page begins.

    `measured`: the time of the measurement by which slices without a live mail were skipped.
    `audited`: the time of the audit whose verdict is the filter.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    cut: str | None = None
    after: str | None = None
    measured: datetime | None = None
    audited: datetime | None = None


def mails(
    facts: Facts, one: QueueOverview, filters: MailsFilter, after: str | None = None
) -> MailsPage:
    """The oldest mails that match, behind the mail or position `after`. Stops after a page, or
    when it has read too much or for too long.
    """
    now, position = facts.now, _position(after) if after else None
    row_filter, slice_start = _RowFilter.of(facts, one.queue, filters), filters.slice_start
    reading, end = PageReading(), time.monotonic() + _SECONDS
    with facts.stores() as stores:
        queue = MailQueue(stores, one.queue, lambda: now)
        measured, is_skipped = _empty_slices(one, queue.shape.largest_window, now)
        if filters.slice:
            measured, is_skipped = None, lambda start: slice_start not in {None, start}
        matching: list[ViewRow] = []
        cut, latest = None, row_filter.filter.latest(now)
        rows = queue.page(reading, PAGE + 1, latest, position, is_skipped)
        for number, (row, passes) in enumerate(row_filter.evaluate(stores, one.queue, rows), 1):
            if len(matching) == PAGE:
                cut = "more follow"
                break
            start = row.partition.slice_start
            position = start, row.enqueued_time or start, row.enqueue_id
            if passes:
                matching.append(row)
            elif number % PAGE == 0 and time.monotonic() > end:  # rows come PAGE at a time
                cut = _read_so_far(position)
                break
        else:
            if reading.position is not None:
                position, cut = reading.position, _read_so_far(reading.position)
        if reading.is_cut:
            cut = f"{cut}; of a slice with more than {reading.ids:,} rows some are left out"
        following = _cursor(position) if isinstance(position, tuple) else None
        lines = mail_lines(stores, one.queue, matching)
        return MailsPage(lines, cut, following if cut else None, measured, row_filter.audited)


@dataclass(frozen=True, slots=True)
class MailsFile:
    """Envelopes as CSV. `name`: of the file, with `first-` when mails are missing."""

    name: str
    text: str


def export(facts: Facts, one: QueueOverview, filters: MailsFilter) -> MailsFile:
    """The oldest mails that match. Reads every slice, for ten seconds at most."""
    row_filter, slice_start = _RowFilter.of(facts, one.queue, filters), filters.slice_start
    deadline = BrowseDeadline.in_seconds(EXPORT_SECONDS)
    lines: list[dict[str, Any]] = []
    with facts.stores() as stores:
        rows = MailQueue(stores, one.queue, lambda: facts.now).browse(deadline=deadline)
        evaluated = row_filter.evaluate(stores, one.queue, rows)
        for chunk in batches(evaluated, PAGE):
            chosen = (row for row, passes in chunk if passes)
            matching = [row for row in chosen if slice_start in {None, row.partition.slice_start}]
            lines += mail_lines(stores, one.queue, matching)
            if len(lines) > MAX_EXPORTED:
                break
    is_cut = max(len(lines), len(row_filter.ids or ())) > MAX_EXPORTED or deadline.stopped_at
    del lines[MAX_EXPORTED:]
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(COLUMNS)
    table.writerows([_cell(line[name]) for name in COLUMNS] for line in lines)
    queue = re.sub(r"[^A-Za-z0-9._-]", "_", one.queue)[:80]
    first = "first-" if is_cut else ""
    return MailsFile(f"{queue}-{first}{len(lines)}-mails.csv", text.getvalue())


def _cell(value: object) -> str:
    """The value as a text that no spreadsheet takes for a formula."""
    if isinstance(value, datetime):
        return value.isoformat()
    whole = " ".join(value) if isinstance(value, tuple | list) else str(value or "")
    text = shortened(whole, _LONGEST_CELL)
    return f"'{text}" if text.lstrip()[:1] in {"=", "+", "-", "@"} else text


@dataclass(frozen=True, slots=True)
class _RowFilter:
    now: datetime
    filter: MailFilter
    state: Wildcard | None
    before: datetime | None
    ids: Collection[str] | None
    audited: datetime | None

    @classmethod
    def of(cls, facts: Facts, queue: QueueName, filters: MailsFilter) -> Self:
        """Raises BadInput for a wrong filter, and for a verdict where the queue has no audit."""
        audited, ids = _audited(facts, queue, filters.verdict) if filters.verdict else (None, None)
        within = parse_duration(filters.due, "due") if filters.due else None
        if within is not None and within > LONGEST_DELAY:
            raise BadInput(f"due: {filters.due!r} is not allowed; at most 30d is")
        return cls(
            facts.now,
            filters.parsed(),
            Wildcard(filters.state, ignore_case=True) if filters.state else None,
            None if within is None else facts.now + within,
            ids,
            audited,
        )

    def evaluate(
        self, stores: Stores, queue: QueueName, rows: Iterator[ViewRow]
    ) -> Iterator[tuple[ViewRow, bool]]:
        """Each row, and whether it passes."""
        if self.before is None:
            yield from ((row, self._passes(row)) for row in rows)
            return
        for chunk in batches(rows, PAGE):
            ids = [row.enqueue_id for row in chunk if self._passes(row)]
            states = stores.delay_states(queue, ids)
            for row in chunk:
                due = states.get(row.enqueue_id, DelayState()).due
                yield row, due is not None and due <= self.before

    def _passes(self, row: ViewRow) -> bool:
        return (
            self.filter.matches(row, self.now)
            and (self.state is None or self.state.matches(row.item.mail.state or ""))
            and (self.ids is None or str(row.enqueue_id) in self.ids)
        )


def _audited(facts: Facts, queue: QueueName, verdict: str) -> tuple[datetime, Collection[str]]:
    """When the newest audit was made, and the ids of the mails that had the verdict."""
    from mailslice.maintenance.audits import newest_audit

    if verdict not in set(Verdict):
        raise BadInput(f"verdict {verdict!r}; allowed: {', '.join(Verdict)}")

    def ask(stores: Stores) -> tuple[datetime, Collection[str]] | None:
        audit = newest_audit(stores, queue) if stores.existing_runs() else None
        if audit is None:
            return None
        audited_mails = audit.mails(artifacts(facts.settings))
        ids = (mail.enqueue_id for mail in audited_mails if mail.verdict == verdict)
        return audit.made_at, frozenset(islice(ids, MAX_EXPORTED + 1))

    known = facts.cached(("verdict", queue, verdict), ask, timedelta(minutes=1))
    if known.value is None:
        raise BadInput(known.problem or f"queue {queue!r} has no audit yet: run queue_audit")
    return known.value


def _read_so_far(position: Position) -> str:
    """Says how far a page has read that could not read all."""
    return f"it looked as far as mails of {position[1]:%Y-%m-%d %H:%M} UTC, and more follow"


def _empty_slices(
    one: QueueOverview, window: timedelta, now: datetime
) -> tuple[datetime | None, Callable[[datetime], bool]]:
    """The time of the newest measurement, and a test of a slice's start: it had no live mail then,
    and can have got no row since.
    """
    report = one.reports.get("queue_size", {})
    if (at := moment_of(report.get("measuredAt"))) is None:
        return None, lambda _: False
    oldest, settled = moment_of(report.get("oldest")), settled_before(min(at, now), window)
    live = {moment_of(row["start"]): row["live"] for row in report.get("slices", ())}
    # The report sums up slices before `first`. A mail's slice begins less than a window before it.
    first = min((start for start in live if start), default=settled)
    oldest = settled if oldest is None else oldest - window

    def is_skipped(start: datetime) -> bool:
        return start <= settled and (start < oldest or (start >= first and not live.get(start)))

    return at, is_skipped


def _cursor(position: Position) -> str:
    start, enqueued, id_ = position
    return f"{epoch_ms(start)}.{epoch_ms(enqueued)}.{id_}"


def _position(text: str) -> Position | EnqueueId:
    """Raises BadInput for what `_cursor` did not make, and is no id."""
    start, _, rest = text.partition(".")
    enqueued, _, id_ = rest.partition(".")
    if not id_:
        return parse_enqueue_id(text)
    if not (start.isdecimal() and enqueued.isdecimal() and len(start) < 15 > len(enqueued)):
        raise BadInput(f"after={text!r} is no position of a page")
    return instant(int(start)), instant(int(enqueued)), parse_enqueue_id(id_)


def mail_lines(stores: Stores, queue: QueueName, rows: Sequence[ViewRow]) -> list[dict[str, Any]]:
    """Envelopes, attempts that failed, and when delayed mails are due. Creates no table."""
    return [
        {
            "id": row.enqueue_id,
            "name": row.item.mail.name,
            "sender": row.item.mail.sender,
            "recipients": row.item.mail.recipients,
            "state": row.item.mail.state,
            "enqueued": row.enqueued_time,
            "due": state.due,
            "attempts": state.failures,
            "answer": state.answer,
        }
        for row, state in stores.with_delays(queue, rows)
    ]


def moment_of(text: str | None) -> datetime | None:
    """A time of a report."""
    return datetime.fromisoformat(text) if text else None
