"""Creates and finds queues. A queue is known when RabbitMQ has its exchange and its work queue."""

from mailslice.model.command_line import command_line
from mailslice.model.errors import UnknownQueue
from mailslice.model.mail import QueueName
from mailslice.model.names import queue_name
from mailslice.stores import Stores
from mailslice.view.configuration import ConfigurationGuard

_MAX_NAMES = 20


def create(stores: Stores, name: str) -> QueueName:
    """Create what the queue lacks: tables, configuration, bucket, and then RabbitMQ's part.

    RabbitMQ's part comes last, so a known queue is complete. An existing queue stays as it is.
    Raises BadInput for a bad name, ConfigurationDiffers, and TopologyDiffers when the queue exists
    with other arguments.
    """
    queue = queue_name(name)
    stores.tables.create()
    ConfigurationGuard(stores.tables, stores.settings).ensure()
    stores.blobs.ensure_bucket()
    stores.rabbitmq.declare(queue)
    stores.rabbitmq.check(queue)
    return queue


def require(stores: Stores, name: str) -> QueueName:
    """The checked name. Raises UnknownQueue, which lists the known queues."""
    queue = queue_name(name)
    if stores.rabbitmq.exists(queue):
        return queue
    names = stores.rabbitmq.names()
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    hint = f"known are: {', '.join(names[:_MAX_NAMES])}{more}" if names else "there is none"
    raise UnknownQueue(
        f"RabbitMQ has no mail queue {queue!r}; {hint}. "
        f"`{command_line('queue create', queue)}` creates it"
    )
