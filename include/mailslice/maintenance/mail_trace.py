"""`mailslice mail trace`: what each store, and a log of events, says of one mail.

It changes nothing. The entry of a source that does not respond is `unknown`, never `no`.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from glob import glob
from itertools import chain
from os import SEEK_END
from pathlib import Path
from typing import Any, Self

from mailslice.admin.dead_letters import peek
from mailslice.admin.deletions import DeletedMail, deleted_mails, deleted_runs
from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.maintenance.artifacts import artifacts
from mailslice.model.clock import system_clock
from mailslice.model.command_line import command_line
from mailslice.model.errors import BadInput, MailsliceError, StoreUnavailable, TryAgain
from mailslice.model.mail import EnqueueId, QueueName, parse_enqueue_id
from mailslice.model.names import RabbitNames
from mailslice.stores import Stores
from mailslice.stores.cassandra import own
from mailslice.stores.cassandra.own.quarantine import State

CASSANDRA, RABBITMQ, ARTIFACTS, BUCKET = "Cassandra", "RabbitMQ", "artifacts", "own bucket"
YES, NO, UNKNOWN, NOT_ASKED = "yes", "no", "unknown", "not asked"
MAX_READ = 64 * 2**20
"""Bytes of logs that are read."""
MAX_DELETED = 100_000
"""Deleted mails of a queue that are read: at most 500 in an object of the bucket."""
_EVENT_WORDS = ("worker", "attempt", "recipients", "answer", "why", "next", "due")


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """What a source says. `time` is when it happened, None where the source does not know."""

    says: str
    time: datetime | str | None = None
    enqueue_id: EnqueueId | None = None
    name: str | None = None


Question = Callable[[QueueName, "TracedMail"], Iterable[SourceAnswer]]


@dataclass(slots=True)
class TracedMail:
    """The mail that is traced: by its enqueue id, or by its name and the ids found for it."""

    name: str | None = None
    ids: set[EnqueueId] = field(default_factory=set)

    @classmethod
    def of(cls, text: str) -> Self:
        """An enqueue id where the text is a UUID, else a name."""
        enqueue_id = _enqueue_id(text)
        return cls(name=text) if enqueue_id is None else cls(ids={enqueue_id})

    def matches(self, enqueue_id: EnqueueId | None, name: str | None) -> bool:
        return enqueue_id in self.ids or (self.name is not None and name == self.name)


class Trace:
    """Asks all stores except `without` about a mail. `queues` empty: all that RabbitMQ has."""

    def __init__(
        self,
        stores: Stores,
        traced: TracedMail,
        queues: Iterable[QueueName] = (),
        without: Collection[str] = (),
    ) -> None:
        self._stores = stores
        self._without = without
        self._traced = traced
        self._queues = list(queues)
        self._days: Mapping[QueueName, Sequence[str]] | None = None  # with decisions
        self._unavailable: dict[str, str] = {}
        """Store -> why it does not answer. Such a store is not asked again."""
        self.entries: list[dict[str, object]] = []

    def run(self, events: Iterable[Mapping[str, Any]] = ()) -> list[dict[str, object]]:
        """All answers, oldest first; those without a time come last."""
        self._add_events(events)
        queues = self._queues or self._known_queues()
        for queue in queues:  # these may find ids for the name
            self._ask(queue, "view", CASSANDRA, self._view)
            self._ask(queue, "workers", CASSANDRA, self._workers)
            self._ask(queue, "quarantine", CASSANDRA, self._quarantine)
            self._ask(queue, "moving", CASSANDRA, partial(self._quarantine, moving=True))
            self._ask(queue, "deleted", BUCKET, self._deleted)
            self._ask(queue, "decisions", CASSANDRA, self._decisions)
            self._ask(queue, "dead letters", RABBITMQ, self._dead_letters)
            self._ask(queue, "parked", RABBITMQ, self._parked)
            self._ask(queue, "audit", ARTIFACTS, self._audit)
        by_id: dict[str, Question] = {
            "deleted mark": self._mark,
            "delayed": self._delayed,
            "stage marks": self._stages,
            "republished": self._republished,
        }
        for queue in queues:
            for source, question in by_id.items():
                if self._traced.ids:
                    self._ask(queue, source, CASSANDRA, question)
                else:
                    says = "it has enqueue ids only, and none is known for this name"
                    self._add(queue, source, NOT_ASKED, SourceAnswer(says))
        return in_order(self.entries)

    def raise_for(self, text: str) -> None:
        """Raises StoreUnavailable if a source that may know it is away, BadInput if none knows it.

        `text`: what was looked for.
        """
        is_known = any(entry["answer"] == YES for entry in self.entries)
        unknown = [entry for entry in self.entries if entry["answer"] == UNKNOWN]
        if self._unavailable or (unknown and not is_known):
            raise StoreUnavailable(
                f"mail trace: {len(unknown)} places did not answer, so what they know is unknown; "
                f"the first: {unknown[0]['source']}: {unknown[0]['says']}"
            )
        if not is_known:
            raise BadInput(
                f"mail trace: no store knows {text[:200]!r}; a mail that was delivered and cleaned "
                "is in no store any more: give a log by --log FILE"
            )

    def _known_queues(self) -> list[QueueName]:
        try:
            return self._stores.rabbitmq.names()
        except MailsliceError as error:
            self._unavailable[RABBITMQ] = str(error)
            says = f"which queues there are: {error}; name one by --queue"
            self._add(None, "queues", UNKNOWN, SourceAnswer(says))
            return []

    def _ask(self, queue: QueueName, source: str, store: str, question: Question) -> None:
        if store in self._without:
            return
        if store in self._unavailable:
            self._add(queue, source, UNKNOWN, SourceAnswer(self._unavailable[store]))
            return
        is_empty = True
        try:
            for finding in question(queue, self._traced):
                is_empty = False
                if finding.enqueue_id is not None and self._traced.name is not None:
                    self._traced.ids.add(finding.enqueue_id)
                self._add(queue, source, YES, finding)
        except (MailsliceError, ImportError) as error:
            if isinstance(error, TryAgain):
                self._unavailable[CASSANDRA if "Cassandra" in str(error) else store] = str(error)
            self._add(queue, source, UNKNOWN, SourceAnswer(str(error)))
            return
        if is_empty:
            self._add(queue, source, NO, SourceAnswer("nothing of this mail"))

    def _add(self, queue: str | None, source: str, answer: str, finding: SourceAnswer) -> None:
        about = {"time": finding.time, "queue": queue, "source": source, "answer": answer}
        mail = {"enqueueId": finding.enqueue_id, "name": finding.name}
        self.entries.append({**about, **mail, "says": finding.says})

    def _add_events(self, events: Iterable[Mapping[str, Any]]) -> None:
        traced = self._traced
        try:
            for event in events:
                enqueue_id = _enqueue_id(event.get("enqueueId"))
                if not traced.matches(enqueue_id, event.get("name")):
                    continue
                if enqueue_id is not None and traced.name is not None:
                    traced.ids.add(enqueue_id)
                words = [f"{key}: {event[key]}" for key in _EVENT_WORDS if key in event]
                says = "; ".join([str(event.get("event") or event.get("message")), *words])
                finding = SourceAnswer(says, event.get("time"), enqueue_id, event.get("name"))
                self._add(event.get("queue"), "log", YES, finding)
        except OSError as error:
            self._add(None, "log", UNKNOWN, SourceAnswer(f"a log cannot be read: {error}"))

    def _view(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        view = MailQueue(self._stores, queue, system_clock)
        rows = view.find(name=traced.name) if traced.name is not None else []
        rows += [row for enqueue_id in traced.ids for row in view.find(enqueue_id=enqueue_id)]
        for row in {row.enqueue_id: row for row in rows}.values():
            mail = row.item.mail
            start = f"{row.partition.slice_start:%Y-%m-%dT%H:%M:%SZ}"
            says = f"live: a row in slice {start}, no deleted mark"
            says += f"; {len(mail.recipients)} recipients"
            yield SourceAnswer(says, row.enqueued_time, row.enqueue_id, mail.name)

    def _mark(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        for enqueue_id in self._stores.tables.deleted.marked(queue, list(traced.ids)):
            yield SourceAnswer("it has a deleted mark: delivered, or deleted", None, enqueue_id)

    def _workers(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        for record in self._stores.worker_records(queue):
            alive = "alive" if record.is_alive else "silent"
            for mail in record.in_flight:
                if traced.matches(mail.enqueue_id, mail.name):
                    held = "in a handler of" if mail.begun else "fetched by"
                    says = f"{held} worker {record.worker} ({alive}), {mail.stage}"
                    says += f", attempt {mail.attempt}"
                    yield SourceAnswer(says, record.since(mail), mail.enqueue_id, mail.name)
            for done in traced.ids & set(record.done):
                yield SourceAnswer(f"completed by worker {record.worker}", record.heartbeat, done)

    def _delayed(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        table = own.DelayedMails.existing(self._stores.cassandra, self._stores.settings)
        for enqueue_id in traced.ids if table is not None else ():
            mail = table.get(queue, enqueue_id) if table is not None else None
            if mail is None:
                continue
            if mail.due is None:
                yield SourceAnswer("it was delayed, and that is over", None, enqueue_id)
                continue
            kind = "in a handler, under a lease" if mail.leased else "delayed"
            waits = ", waits for a destination" if mail.throttled else ""
            says = f"{kind} until {mail.due:%Y-%m-%dT%H:%M:%SZ}{waits}; {mail.failures} failures"
            yield SourceAnswer(says, mail.enqueued, enqueue_id)

    def _stages(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        table = own.MailStages.existing(self._stores.cassandra, self._stores.settings)
        records = {} if table is None else table.by_ids(queue, traced.ids)
        for one, record in records.items():
            says = f"{record.stage.value} in attempt {record.attempt} by {record.owner}"
            yield SourceAnswer(f"{says}; {len(record.remaining)} not begun", record.updated, one)

    def _republished(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        table = own.RepublishedMails.existing(self._stores.cassandra, self._stores.settings)
        mails = {} if table is None else table.by_ids(queue, traced.ids)
        for one, mail in mails.items():
            yield SourceAnswer(
                f"{mail.state.value} again by {mail.who}, run {mail.run}", mail.at, one
            )

    def _quarantine(
        self, queue: QueueName, traced: TracedMail, *, moving: bool = False
    ) -> Iterator[SourceAnswer]:
        kind = own.MovingMails if moving else own.QuarantineTable
        table = kind.existing(self._stores.cassandra, self._stores.settings)
        for mail in table.list(queue) if table is not None else ():
            if traced.matches(mail.enqueue_id, mail.name) or mail.released_as in traced.ids:
                if moving:
                    says = f"{_move_of(queue, mail)} by {mail.who}: {mail.why}"
                else:
                    anew = f", enqueued anew as {mail.released_as}" if mail.released_as else ""
                    says = f"{mail.state.value} ({mail.action}) by {mail.who}{anew}: {mail.why}"
                yield SourceAnswer(says, mail.decided, mail.enqueue_id, mail.name)

    def _deleted(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        """Mails that a delete keeps. The newest runs are read, up to MAX_DELETED mails."""
        now, read, unread = system_clock(), 0, 0
        chosen = MailFilter(
            name=traced.name, ids=None if traced.name is not None else frozenset(traced.ids)
        )
        for run in list(deleted_runs(self._stores, queue, now)):
            count = int(str(run["mails"]))
            if read + count > MAX_DELETED:
                unread += count
                continue
            read += count
            batches = deleted_mails(self._stores, queue, now, chosen, str(run["run"]))
            for mail in chain.from_iterable(batches):
                says, name = _deletion_of(queue, mail), mail.kept.item.mail.name
                yield SourceAnswer(says, mail.batch.deleted, mail.enqueue_id, name)
        if unread:
            raise MailsliceError(
                f"{unread} mails that deletes keep were not read: "
                f"`{command_line('queue deleted', queue)}` with --id or --name finds this one"
            )

    def _decisions(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        stores = self._stores
        if (table := own.Decisions.existing(stores.cassandra, stores.settings)) is None:
            return
        now = system_clock()
        since = now - stores.settings.duty.retention
        if self._days is None and len(self._queues) != 1:
            self._days = table.days(since, now)
        days = None if self._days is None else self._days.get(queue, ())
        for row in table.list(queue, since, now, days):
            if traced.matches(row.enqueue_id, row.name):
                says = f"{row.action} by {row.who} ({row.verdict}, worker {row.worker}): {row.why}"
                yield SourceAnswer(says, row.decided, row.enqueue_id, row.name)

    def _dead_letters(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        peeked = peek(self._stores, queue)
        for letter in peeked.letters:
            if traced.matches(letter.enqueue_id, letter.name):
                says = f"dead letter at position {letter.position}: "
                says += letter.reason or letter.death or "without a reason, as James leaves none"
                yield SourceAnswer(says, letter.died_at, letter.enqueue_id, letter.name)
        if peeked.unseen:
            raise MailsliceError(f"{peeked.unseen} dead letters behind the first were not read")

    def _parked(self, queue: QueueName, _traced: TracedMail) -> Sequence[SourceAnswer]:
        if (count := self._stores.management.messages(RabbitNames(queue).park_queue)) == 0:
            return ()
        says = f"{count or 'some'} messages are parked for a minute; no store lists them"
        raise MailsliceError(says)

    def _audit(self, queue: QueueName, traced: TracedMail) -> Iterator[SourceAnswer]:
        from mailslice.maintenance.audits import newest_audit  # needs the extra `duties`

        audit = newest_audit(self._stores, queue) if self._stores.existing_runs() else None
        if audit is None:
            return
        for mail in audit.mails(artifacts(self._stores.settings)):
            enqueue_id = _enqueue_id(mail.enqueue_id)
            if traced.matches(enqueue_id, mail.name):
                says = f"{mail.verdict} in audit {audit.run}: {mail.why}"
                yield SourceAnswer(says, audit.made_at, enqueue_id, mail.name)


def _move_of(queue: QueueName, mail: own.QuarantinedMail) -> str:
    """How far a move has come, and the command that finishes it for this mail alone."""
    delays = mail.moved_to in {"", queue}
    where = f"a delay within {queue}" if delays else f"a move to {mail.moved_to}"
    words = ("delay", queue, "--for", "1m") if delays else ("move", queue, mail.moved_to)
    command = command_line("queue", *words, "--id", mail.enqueue_id, "--yes")
    if mail.state in {State.RELEASED, State.DISCARDING}:
        return f"{where}, {mail.state.value}: it is over"
    if mail.state in {State.NOTED, State.CLOSING}:
        return f"{where}, pending: the mail is in its queue yet; `{command}` finishes it"
    if mail.state is State.KEPT:
        return (
            f"{where}, doubtful: it may have been delivered since; `{command}` "
            "finishes it, in doubt with --accept-duplicates alone"
        )
    new = f" as {mail.released_as}" if mail.released_as else ""
    return f"{where}{new}, pending: the mail is out of its queue; `{command}` finishes it"


def _deletion_of(queue: QueueName, mail: DeletedMail) -> str:
    """What a delete keeps of the mail, until when, and the command that brings it back."""
    batch = mail.batch
    says = f"deleted by {batch.who}, run {batch.run}{f': {batch.reason}' if batch.reason else ''}; "
    if mail.undeleted is not None and mail.is_back:
        return f"{says}brought back as {mail.undeleted.new_id}"
    says += f"kept until {batch.until:%Y-%m-%dT%H:%M:%SZ}"
    if mail.kept.content == "lost":
        return f"{says}, without content"
    doubt = ", may have been delivered" if mail.may_be_delivered else ""
    accept = ("--accept-duplicates",) if mail.may_be_delivered else ()
    options = "--run", batch.run, "--id", mail.enqueue_id, "--yes", *accept
    return f"{says}{doubt}: `{command_line('queue undelete', queue, *options)}` brings it back"


def in_order(entries: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """Sorted by time: a datetime of a store, or text of a log. Entries without one come last."""

    def key(entry: Mapping[str, object]) -> tuple[bool, str]:
        time = entry["time"]
        text = time.isoformat() if isinstance(time, datetime) else str(time)
        return time is None, text.removesuffix("Z").removesuffix("+00:00")

    return sorted(entries, key=key)


def events_of(traced: TracedMail, files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Events of the mail in the newest 64 MiB of these files. Raises OSError, also without any."""
    paths = {Path(path) for pattern in files for path in glob(pattern)}  # noqa: PTH207 - any folder
    if files and not paths:
        raise FileNotFoundError(f"no file is named {', '.join(files)} (MAILSLICE_LOG_FILES)")
    texts = map(str, traced.ids) if traced.name is None else [traced.name]
    words = [json.dumps(text, ensure_ascii=False)[1:-1].encode() for text in texts]
    remaining = MAX_READ
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        with path.open("rb") as stream:
            size = stream.seek(0, SEEK_END)
            stream.seek(max(0, size - remaining))
            lines = (line for line in stream if any(word in line for word in words))
            yield from events_in(line.decode(errors="replace") for line in lines)
        remaining -= size
        if remaining <= 0:
            break


def events_in(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a log; other lines are left out."""
    for line in lines:
        start = line.find("{")
        if start < 0:
            continue
        with suppress(ValueError, RecursionError):
            event = json.loads(line[start:])
            if isinstance(event, dict):
                yield event


def _enqueue_id(text: object) -> EnqueueId | None:
    with suppress(BadInput):
        return parse_enqueue_id(str(text))
    return None
