"""The books of one queue: the answers that callers got, the mails that handlers got, and whether
the stores agree with both (invariants I1, I2 and I6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pika.exceptions import ChannelClosedByBroker

from mailslice.bench.clearing import marked_ids
from mailslice.codec import message
from mailslice.model.errors import Undecodable
from mailslice.model.mail import EnqueueId, QueuedMail, QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.stores.rabbitmq.blocking_publisher import ready_messages
from mailslice.stores.rabbitmq.checkout import dead_letters
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.testing.faults.operations import RECIPIENTS, content_of

if TYPE_CHECKING:
    from mailslice.stores import Stores
    from mailslice.stores.cassandra.own import DelayedMail


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of one queue in the stores.

    `letters`: bodies of dead letters. `ready`: RabbitMQ queue -> ready messages, without empty
    queues.
    """

    rows: Mapping[EnqueueId, ViewRow]
    marks: frozenset[EnqueueId]
    blobs: frozenset[str]
    delayed: Mapping[EnqueueId, DelayedMail]
    letters: tuple[bytes, ...]
    ready: Mapping[str, int]

    @staticmethod
    def load(stores: Stores, queue: QueueName) -> QueueState:
        """Reads the whole state. Nobody may work on the queue meanwhile."""
        written = stores.tables.written
        pages = written.rows_of(queue, written.partitions(queue))
        rows = [row for _, page in pages for row in page]
        return QueueState(
            rows={row.enqueue_id: row for row in rows},
            marks=frozenset(marked_ids(stores.tables.deleted, queue)),
            blobs=frozenset(blob.key for blob in stores.blobs.list()),
            delayed={
                row.enqueue_id: row
                for row in stores.own.delayed_mails.rows(queue)
                if not row.published
            },
            letters=tuple(dead_letters(stores.settings, queue)),
            ready=ready(stores, queue),
        )

    def live(self) -> Iterable[ViewRow]:
        """The rows without a mark."""
        return (row for enqueue_id, row in self.rows.items() if enqueue_id not in self.marks)

    def has_content(self, item: QueuedMail) -> bool:
        """Whether both blobs exist."""
        return {item.header_blob_id, item.body_blob_id} <= self.blobs


def ready(stores: Stores, queue: QueueName) -> dict[str, int]:
    """RabbitMQ queue -> ready messages, without dead letters and empty queues.

    The figures are current, unlike those of the management API.
    """
    names, delays = RabbitNames(queue), stores.management.delay_queues(queue)
    counts: dict[str, int] = {}
    with blocking_connection(stores.settings.rabbitmq) as connection:
        channel = connection.channel()
        # A queue that never delayed a mail has no hop queue and no delay levels.
        with suppress(ChannelClosedByBroker):
            for name in (names.work_queue, names.hop_queue, names.park_queue, *delays):
                counts[name] = ready_messages(channel, name)
    return {name: count for name, count in counts.items() if count}


@dataclass(slots=True)
class Books:
    """Filled with the events of callers and handlers in the order of time. `wrong` has a sentence
    for each entry that does not balance.

    `strict`: a mail whose enqueue failed is never delivered (a mark could always be written).
    """

    strict: bool = True
    accepted: set[EnqueueId] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    ended: dict[EnqueueId, float] = field(default_factory=dict)
    """When a mail was durably completed or deleted, by the monotonic clock in seconds."""
    narrowed: dict[EnqueueId, float] = field(default_factory=dict)
    bare: set[EnqueueId] = field(default_factory=set)
    junk: set[bytes] = field(default_factory=set)
    drained: dict[EnqueueId, QueuedMail] = field(default_factory=dict)
    """Mails that the drain completed, without kills and faults: nothing of these mails may
    remain.
    """
    deliveries: Counter[EnqueueId] = field(default_factory=Counter)
    sent: Counter[tuple[EnqueueId, str]] = field(default_factory=Counter)
    """How often a mail with stage marks was sent to each recipient."""
    set_aside: dict[EnqueueId, str] = field(default_factory=dict)
    """Ids and names of the mails that were put into quarantine."""
    wrong: list[str] = field(default_factory=list)

    def hand(
        self,
        item: QueuedMail,
        arrived: float,
        content: bytes,
        recipients: tuple[str, ...] | None = None,
    ) -> None:
        """A handler got the mail. The broker delivered it at `arrived`, before its deleted check.

        `recipients`: those that a retry left, if that is known.
        """
        one = item.enqueue_id
        self.deliveries[one] += 1
        late = arrived - self.ended.get(one, arrived)
        self._expect(late <= 0, f"{one} was handed out {late:.2f} s after its end (I2)")
        refused = self.strict and item.mail.name in self.refused
        self._expect(not refused, f"{one} was handed out, though its enqueue had failed")
        begin = max(0, content.find(b"Subject: "))
        name = content[begin + 9 :].partition(b"\r\n")[0].decode(errors="replace")
        has_content = content[begin:] == content_of(name)
        self._expect(has_content, f"{one} was handed out with the content {content!r}")
        if recipients is not None and self.narrowed.get(one, arrived) < arrived:
            self._expect(
                item.mail.recipients == recipients,
                f"{one} was handed out to {len(item.mail.recipients)} recipients after a retry "
                f"for {len(recipients)}",
            )

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)

    def send(self, enqueue_id: EnqueueId, recipient: str) -> None:
        """A handler with stage marks sends the mail to this recipient."""
        self.sent[enqueue_id, recipient] += 1
        once = self.sent[enqueue_id, recipient] == 1
        self._expect(once, f"{enqueue_id} was sent to {recipient} twice")

    def end(self, ids: Iterable[EnqueueId], at: float) -> None:
        """These mails were durably completed or deleted at `at`."""
        for enqueue_id in ids:
            self.ended.setdefault(enqueue_id, at)

    def check_live(self, state: QueueState) -> None:
        """I1 and I6 before the drain: an accepted mail without an end is live and has content."""
        dead = {_id_of(body) for body in state.letters}
        for enqueue_id in self.accepted - self.ended.keys() - state.marks - dead:
            row = state.rows.get(enqueue_id)
            if row is None:
                self.wrong.append(f"{enqueue_id} was accepted and has no row (I1)")
            elif enqueue_id not in self.bare and not state.has_content(row.item):
                self.wrong.append(f"{enqueue_id} is live and has lost its content (I6)")

    def check_end(self, state: QueueState, far: Iterable[str] = ()) -> None:
        """I1 and I6 after the drain, when no messages or blobs may remain.

        `far`: RabbitMQ queues in which late copies may still wait.
        """
        letters = {_id_of(body) for body in state.letters}
        for one in self.accepted - state.marks - letters:
            self.wrong.append(
                f"{one} was accepted, and is neither completed nor deleted nor a dead letter (I1)"
            )
        for row in state.live():
            has_content = row.enqueue_id in self.bare or state.has_content(row.item)
            self._expect(has_content, f"{row.enqueue_id} is live and has lost its content (I6)")
        for body in self.junk - set(state.letters):
            self.wrong.append(f"a message that is no mail is gone: {body!r}")
        for one in state.delayed.keys() & self.accepted - state.marks - letters:
            self.wrong.append(f"{one} is still delayed")
        for name in state.ready.keys() - set(far):
            self.wrong.append(f"{state.ready[name]} messages are left in {name}")
        for item in self.drained.values():
            blobs = len({item.header_blob_id, item.body_blob_id} & state.blobs)
            self._expect(
                not blobs, f"{item.enqueue_id} was completed in peace and left {blobs} blobs"
            )

    def check_sent(self, state: QueueState, failed: Iterable[QueuedMail]) -> None:
        """With stage marks, after the drain: each recipient got the mail, or is in doubt.

        `failed`: the mails in quarantine, with only their recipients in doubt.
        """
        doubtful = {(item.enqueue_id, one) for item in failed for one in item.mail.recipients}
        every = {(one, to) for one in self.accepted & state.rows.keys() for to in RECIPIENTS}
        for one, recipient in sorted(every - doubtful - self.sent.keys()):
            self.wrong.append(f"{one} was neither sent to {recipient} nor set aside as in doubt")

    def check_told(self, names: Iterable[str], reported: Collection[str]) -> None:
        """The senders of the mails with these names were informed: each mail has a report."""
        self.wrong += [
            f"{name} failed, and its sender was told nothing"
            for name in names
            if name not in reported
        ]

    def check_released(self, state: QueueState) -> None:
        """Each quarantined mail was released once, under another id, and delivered."""
        names = Counter(item.mail.name for item in self.drained.values())
        for one, name in self.set_aside.items():
            text = f"{one} was set aside, and its release was delivered {names[name]} times"
            self._expect(names[name] == 1, text)
        self.wrong += [
            f"{row.enqueue_id} is live after all releases were delivered" for row in state.live()
        ]

    def lost(self, state: QueueState) -> set[EnqueueId]:
        """Ids of live mails without a message after the drain: queue_audit must find these. None of
        them was accepted.
        """
        return {row.enqueue_id for row in state.live()} - {_id_of(body) for body in state.letters}


def _id_of(body: bytes) -> EnqueueId | None:
    try:
        return message.decode(body).enqueue_id
    except Undecodable:
        return None
