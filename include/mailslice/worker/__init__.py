"""The hot path: enqueue, dequeue, complete; the consumer process, handlers, SMTP in.

The names below are the public ones (docs/worker.md has examples). Without an event loop:
`open_queue`. On one: `open_worker`, `consume`. Each is imported when it is first used. Errors
(`mailslice.model.errors`), by what to do:

- `BadInput`: correct the arguments. Subclasses: `BadSetting`, `UnknownQueue`
- `Refused`: a guard refused, nothing was changed. Subclass: `ConfigurationDiffers`
- `TryAgain`: a store cannot answer now. `StoreUnavailable` names it. `Unconfirmed`: it is unknown
  whether an enqueued mail will be delivered
- `TakenOver`: another worker has the mail; a handler does not catch it
- `DeadLetter`: raised by a handler, it sends the mail to the dead letter queue
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mailslice.admin.filters import MailFilter
    from mailslice.admin.mail_queue import MailQueue
    from mailslice.codec.reports import Failure
    from mailslice.model.errors import (
        BadInput,
        BadSetting,
        ConfigurationDiffers,
        DeadLetter,
        MailsliceError,
        Refused,
        StoreUnavailable,
        TakenOver,
        TryAgain,
        Unconfirmed,
        UnknownQueue,
    )
    from mailslice.model.mail import EnqueueId, Mail, QueuedMail, ViewRow
    from mailslice.model.settings import Settings, load_settings
    from mailslice.worker.dequeue.delivery import Delivery
    from mailslice.worker.dequeue.dequeuer import Deliveries
    from mailslice.worker.io.destination_throttle import BlockingThrottle
    from mailslice.worker.mails import mail_of, new_mail
    from mailslice.worker.outcome import Bounce, Complete, Outcome, Reject, Retry
    from mailslice.worker.process.consuming import Consumed, consume
    from mailslice.worker.queue_worker import QueueWorker, open_worker
    from mailslice.worker.stages.handler_stage import AsyncStage, BlockingStage
    from mailslice.worker.sync_queue import Enqueued, SyncDelivery, SyncQueue, open_queue, view_of

__all__ = [
    "AsyncStage",
    "BadInput",
    "BadSetting",
    "BlockingStage",
    "BlockingThrottle",
    "Bounce",
    "Complete",
    "ConfigurationDiffers",
    "Consumed",
    "DeadLetter",
    "Deliveries",
    "Delivery",
    "EnqueueId",
    "Enqueued",
    "Failure",
    "Mail",
    "MailFilter",
    "MailQueue",
    "MailsliceError",
    "Outcome",
    "QueueWorker",
    "QueuedMail",
    "Refused",
    "Reject",
    "Retry",
    "Settings",
    "StoreUnavailable",
    "SyncDelivery",
    "SyncQueue",
    "TakenOver",
    "TryAgain",
    "Unconfirmed",
    "UnknownQueue",
    "ViewRow",
    "consume",
    "load_settings",
    "mail_of",
    "new_mail",
    "open_queue",
    "open_worker",
    "view_of",
]

_HOMES = {
    "codec.reports": "Failure",
    "model.errors": (
        "BadInput BadSetting ConfigurationDiffers DeadLetter MailsliceError Refused "
        "StoreUnavailable TakenOver TryAgain Unconfirmed UnknownQueue"
    ),
    "model.mail": "EnqueueId Mail QueuedMail ViewRow",
    "model.settings": "Settings load_settings",
    "admin.filters": "MailFilter",
    "admin.mail_queue": "MailQueue",
    "worker.process.consuming": "Consumed consume",
    "worker.dequeue.delivery": "Delivery",
    "worker.dequeue.dequeuer": "Deliveries",
    "worker.stages.handler_stage": "AsyncStage BlockingStage",
    "worker.mails": "mail_of new_mail",
    "worker.outcome": "Bounce Complete Outcome Reject Retry",
    "worker.queue_worker": "QueueWorker open_worker",
    "worker.sync_queue": "Enqueued SyncDelivery SyncQueue open_queue view_of",
    "worker.io.destination_throttle": "BlockingThrottle",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"mailslice.{_HOME_OF[name]}"), name)
