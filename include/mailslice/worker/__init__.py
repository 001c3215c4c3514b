"""The hot path: enqueue, dequeue, complete; the consumer process, handlers, SMTP in.

The names below are the public ones (docs/worker.md has examples). Without an event loop:
`open_queue`. On one: `open_worker`, `consume`. Each is imported when it is first used. Errors
(`mailslice.model.errors`), by what to do:

- `BadInput`: correct the arguments. Subclasses: `BadSetting`, `UnknownQueue`
- `Refused`: a guard refused; what it refused was not done. Subclass: `ConfigurationDiffers`
- `TryAgain`: a store cannot answer now. `StoreUnavailable` names it. `Unconfirmed`: it is unknown
  whether an enqueued mail will be delivered
- `TakenOver`: another worker has the mail; a handler does not catch it
- `DeadLetter`: raised by a handler, it sends the mail to the dead letter queue
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `as` tells type checkers that a name is public
    from mailslice.admin.filters import MailFilter as MailFilter
    from mailslice.admin.mail_queue import MailQueue as MailQueue
    from mailslice.codec.reports import Failure as Failure
    from mailslice.model.errors import BadInput as BadInput
    from mailslice.model.errors import BadSetting as BadSetting
    from mailslice.model.errors import ConfigurationDiffers as ConfigurationDiffers
    from mailslice.model.errors import DeadLetter as DeadLetter
    from mailslice.model.errors import MailsliceError as MailsliceError
    from mailslice.model.errors import Refused as Refused
    from mailslice.model.errors import StoreUnavailable as StoreUnavailable
    from mailslice.model.errors import TakenOver as TakenOver
    from mailslice.model.errors import TryAgain as TryAgain
    from mailslice.model.errors import Unconfirmed as Unconfirmed
    from mailslice.model.errors import UnknownQueue as UnknownQueue
    from mailslice.model.mail import EnqueueId as EnqueueId
    from mailslice.model.mail import Mail as Mail
    from mailslice.model.mail import QueuedMail as QueuedMail
    from mailslice.model.mail import QueueName as QueueName
    from mailslice.model.mail import ViewRow as ViewRow
    from mailslice.model.settings import Settings as Settings
    from mailslice.model.settings import load_settings as load_settings
    from mailslice.worker.dequeue.delivery import Delivery as Delivery
    from mailslice.worker.dequeue.dequeuer import Deliveries as Deliveries
    from mailslice.worker.events import EventLog as EventLog
    from mailslice.worker.io.destination_throttle import BlockingThrottle as BlockingThrottle
    from mailslice.worker.mails import mail_of as mail_of
    from mailslice.worker.mails import new_mail as new_mail
    from mailslice.worker.outcome import Bounce as Bounce
    from mailslice.worker.outcome import Complete as Complete
    from mailslice.worker.outcome import Outcome as Outcome
    from mailslice.worker.outcome import Reject as Reject
    from mailslice.worker.outcome import Retry as Retry
    from mailslice.worker.process.consume_loop import Consumed as Consumed
    from mailslice.worker.process.consume_loop import consume as consume
    from mailslice.worker.queue_worker import QueueWorker as QueueWorker
    from mailslice.worker.queue_worker import open_worker as open_worker
    from mailslice.worker.stages.handler_stage import AsyncStage as AsyncStage
    from mailslice.worker.stages.handler_stage import BlockingStage as BlockingStage
    from mailslice.worker.sync_queue import Enqueued as Enqueued
    from mailslice.worker.sync_queue import SyncDelivery as SyncDelivery
    from mailslice.worker.sync_queue import SyncQueue as SyncQueue
    from mailslice.worker.sync_queue import open_queue as open_queue
    from mailslice.worker.sync_queue import view_of as view_of

_HOMES = {
    "codec.reports": "Failure",
    "model.errors": (
        "BadInput BadSetting ConfigurationDiffers DeadLetter MailsliceError Refused "
        "StoreUnavailable TakenOver TryAgain Unconfirmed UnknownQueue"
    ),
    "model.mail": "EnqueueId Mail QueueName QueuedMail ViewRow",
    "model.settings": "Settings load_settings",
    "admin.filters": "MailFilter",
    "admin.mail_queue": "MailQueue",
    "worker.process.consume_loop": "Consumed consume",
    "worker.dequeue.delivery": "Delivery",
    "worker.dequeue.dequeuer": "Deliveries",
    "worker.stages.handler_stage": "AsyncStage BlockingStage",
    "worker.events": "EventLog",
    "worker.mails": "mail_of new_mail",
    "worker.outcome": "Bounce Complete Outcome Reject Retry",
    "worker.queue_worker": "QueueWorker open_worker",
    "worker.sync_queue": "Enqueued SyncDelivery SyncQueue open_queue view_of",
    "worker.io.destination_throttle": "BlockingThrottle",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"mailslice.{_HOME_OF[name]}"), name)
