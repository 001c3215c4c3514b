"""The stuck mails of a plan, and what is to be done with each: by mode, or by stage marks."""

from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Self

from pydantic.alias_generators import to_camel

from mailslice.admin.quarantine import Holder
from mailslice.codec import message as codec
from mailslice.engine.row_files import RowFile
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.liveness import Stuck
from mailslice.maintenance.plan import QueuePlan
from mailslice.model.mail import EnqueueId, Partition, QueuedMail, QueueName
from mailslice.model.settings import StuckMode
from mailslice.model.stages import Decision, DeliveryVerdict, decide
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import QuarantinedMail


class Action(StrEnum):
    """What was done with a mail."""

    CLOSED = "closed"
    RELEASED = "released"
    FAILED = "failed"
    COMPLETED = "completed"

    @property
    def would(self) -> str:
        return _WORDS[self][0]

    @property
    def verdict(self) -> str:
        return _WORDS[self][1]


_WORDS = {
    Action.CLOSED: ("would close", "stuck"),
    Action.RELEASED: ("would release", "stuck before sending"),
    Action.FAILED: ("would fail", "stuck while sending"),
    Action.COMPLETED: ("would complete", "stuck after it was sent"),
}
_ACTIONS = {
    DeliveryVerdict.HANDLE: Action.RELEASED,
    DeliveryVerdict.FAIL: Action.FAILED,
    DeliveryVerdict.COMPLETE: Action.COMPLETED,
}


@dataclass(frozen=True, slots=True)
class PlannedMail:
    """A stuck mail that `worker` holds; `action` is what the plan is to do with it."""

    enqueue_id: EnqueueId
    name: str
    worker: str
    stage: str
    attempt: int
    since: datetime
    age_seconds: float
    action: str

    @classmethod
    def of(cls, enqueue_id: EnqueueId, name: str, holder: Holder, action: Action) -> Self:
        """Cuts the age to milliseconds: no mail may seem to be held for longer than it is."""
        seconds = holder.age // timedelta(milliseconds=1) / 1000
        held = (holder.worker, holder.stage, holder.attempt, holder.since, seconds)
        return cls(enqueue_id, name, *held, action.value)

    def as_json(self) -> dict[str, Any]:
        values = {to_camel(field.name): getattr(self, field.name) for field in fields(self)}
        return {**values, "enqueueId": str(self.enqueue_id), "since": iso(self.since)}


class DeadRecord(NamedTuple):
    """The record of a dead worker, by its last beat."""

    worker: str
    beat: int
    mails: int


class StuckPlan(QueuePlan):
    """What one run may do."""

    mode: StuckMode
    lock_timeout: timedelta
    mails: RowFile
    """Rows: PlannedMail."""
    dead: tuple[DeadRecord, ...]

    @property
    def planned(self) -> int:
        return self.mails.rows

    @property
    def has_work(self) -> bool:
        """Every run finishes what killed runs left."""
        return True


@dataclass(frozen=True, slots=True)
class StuckMail:
    """A mail, who holds it, and where its row is; None for a message of James."""

    item: QueuedMail
    holder: Holder
    partition: Partition | None = None

    @property
    def enqueue_id(self) -> EnqueueId:
        return self.item.enqueue_id

    def to(self, recipients: tuple[str, ...]) -> Self:
        mail = replace(self.item.mail, recipients=recipients)
        return replace(self, item=replace(self.item, mail=mail))

    def report_entry(self, action: Action, why: str, **more: object) -> dict[str, Any]:
        """The decision, as the report shows it."""
        mail = PlannedMail.of(self.enqueue_id, self.item.mail.name, self.holder, action)
        return {**mail.as_json(), "why": why, **more}

    def quarantined_entry(self, action: Action, quarantined: QuarantinedMail) -> dict[str, Any]:
        """As `report_entry`, with what became of the content."""
        return self.report_entry(
            action, quarantined.why, content=quarantined.content.value, bytes=quarantined.size
        )


def action_for(
    stores: Stores, queue: QueueName, stuck: Stuck, mode: StuckMode, *, by: str, now: datetime
) -> Action:
    """The action that the plan shows. Shadow mode shows a recovery if workers write stage marks."""
    by_stage = mode is StuckMode.RECOVER or (
        mode is StuckMode.SHADOW and queue in stores.settings.queue.stage_marks
    )
    item = item_of(stores, queue, stuck) if by_stage and stuck.record.stage_marks else None
    if item is None:
        return Action.CLOSED
    return _ACTIONS[stages_of(stores, queue, item, by=by, now=now).verdict]


def is_superseded(stores: Stores, queue: QueueName, stuck: Stuck) -> bool:
    """Whether another attempt has the mail: stage marks of its old holder are refused then."""
    if not stuck.record.stage_marks:
        return False
    stage = stores.own.mail_stages.get(queue, stuck.mail.enqueue_id)
    return stage is not None and stage.attempt > stuck.mail.attempt


def stages_of(
    stores: Stores, queue: QueueName, item: QueuedMail, *, by: str, now: datetime
) -> Decision:
    """What the stage marks say of a mail whose holder hangs."""
    stage = stores.own.mail_stages.get(queue, item.enqueue_id)
    return decide(stage, item.enqueue_id, item.mail.recipients, by=by, now=now)


def item_of(stores: Stores, queue: QueueName, stuck: Stuck) -> QueuedMail | None:
    """The mail, by the message in the worker's record, else by its row; None without both."""
    mail = stuck.mail
    if mail.message is not None:
        return codec.decode(mail.message)
    if mail.partition is None:
        return None
    rows = (table.row(queue, mail.partition, mail.enqueue_id) for table in stores.tables.existing)
    return next((row.item for row in rows if row is not None), None)
