"""Whether James works on the queues, too: one answer for all processes of a deployment (ADR 46).

With MAILSLICE_QUEUE_SHARED=false a cleanup drops deleted marks with their rows, and a worker checks
the row of an old delivery instead. A worker that does not check would hand out deleted mails. So
the own keyspace stores the answer. It stores nothing while all processes say "shared", the default:
a deployment beside James needs no own keyspace for this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from mailslice.model.errors import ConfigurationDiffers, MailsliceError, Refused
from mailslice.model.names import OWN_PREFIX, WORK_QUEUE_PREFIX

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings
    from mailslice.stores import Stores
    from mailslice.stores.cassandra.own import WorkerRecord
    from mailslice.stores.own.locks import Locks

NAME = "queue shared"
"""The row of table `locks` that stores the answer."""
VARIABLE = "MAILSLICE_QUEUE_SHARED"
_RUNNING = timedelta(seconds=150)
"""A worker with a younger record may run: an idle worker writes one a minute."""
_SHOWN = 3
_OWNER, _LEASE = "config shared", timedelta(minutes=1)
"""Owner and lease of the cleanups' locks while the answer is stored. A repeat takes them over."""


def stored(stores: Stores) -> bool | None:
    """The stored answer; None: nothing is stored, which means shared. Creates no table."""
    return _answer(_existing_locks(stores))


def _answer(locks: Locks | None) -> bool | None:
    value = locks.holder(NAME) if locks is not None else None
    return None if value is None else value == _text(True)


def _existing_locks(stores: Stores) -> Locks | None:
    from mailslice.stores.own.locks import LOCKS, Locks

    records = stores.existing_records(LOCKS)
    return None if records is None else Locks(records)


def configured(settings: Settings) -> bool | None:
    """The answer of the settings; None where the variable is not set."""
    queue = settings.queue
    return queue.shared if "shared" in queue.model_fields_set else None


def agree(stores: Stores, queue: QueueName) -> Settings:
    """The settings with the agreed answer. Also sets `stores.settings` to them.

    The first process that says `false` stores it. Raises ConfigurationDiffers when the settings
    differ from the stored answer, or from a running worker; and as `_require_one_james`.
    """
    locks = _existing_locks(stores)
    _require_one_james(stores, queue, locks)
    setting, recorded = configured(stores.settings), _answer(locks)
    if setting is False and recorded is None:
        require_agreement(stores, shared=False)
        recorded = stores.own.locks.first(NAME, _text(False)) == _text(True)
    answer = recorded is not False
    if setting is not None and setting is not answer:
        raise ConfigurationDiffers(
            f"{VARIABLE}={_text(setting)} ({stores.settings.where(VARIABLE)}), and {_text(answer)} "
            f"is stored in keyspace {stores.settings.own.keyspace}: a cleanup and a worker that "
            f"differ hand out deleted mails. Say {_text(answer)} here or unset it; `mailslice "
            f"config shared {_text(setting)}` changes what is stored while no worker runs"
        )
    group = stores.settings.queue.model_copy(update={"shared": answer})
    stores.settings = stores.settings.model_copy(update={"queue": group})
    return stores.settings


def _require_one_james(stores: Stores, queue: QueueName, locks: Locks | None) -> None:
    """Raises ConfigurationDiffers if the own keyspace has rows of a namesake in another keyspace.

    These rows name a queue alone: the samples of one would drop marks of the other. The first
    process of a queue stores its keyspace of James.
    """
    james, own = stores.settings.cassandra.keyspace.lower(), stores.settings.own.keyspace
    name = f"keyspace of {queue}"
    if locks is None or (known := locks.first(name, james)) == james:
        return
    raise ConfigurationDiffers(
        f"MAILSLICE_OWN_KEYSPACE={own} ({stores.settings.where('MAILSLICE_OWN_KEYSPACE')}) has "
        f"records of queue {queue!r} in keyspace {known}, not {james}: give each deployment an own "
        f"keyspace. If {known} was renamed: DELETE FROM {own}.locks WHERE name = '{name}'"
    )


def change(stores: Stores, *, shared: bool, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Store the answer. Returns whether it changed. Raises ConfigurationDiffers, Refused.

    `true` after `false`: only while no message waits, whose mark may be dropped, or cleanup runs.
    """
    before = stored(stores)
    if (before is not False) is shared:
        return False
    require_agreement(stores, shared=shared)
    if before is None:
        done = stores.own.locks.first(NAME, _text(False)) == _text(shared)
    else:
        with _no_mail_waits(stores, sleep) if shared else nullcontext():
            done = stores.own.locks.change(NAME, _text(before), _text(shared))
    if not done:
        raise Refused(f"config shared: another process changed {VARIABLE} meanwhile; look again")
    return True


@contextmanager
def _no_mail_waits(stores: Stores, sleep: Callable[[float], None]) -> Iterator[None]:
    """Two samples without a message, then the locks of all cleanups. Raises as `change`."""
    from mailslice.stores.rabbitmq.management import APART

    _require_no_messages(stores)
    sleep(APART.total_seconds())
    _require_no_messages(stores)
    locks = stores.own.locks
    names = [f"queue_cleanup/{queue}" for queue in stores.management.mail_queues()]
    try:
        for name in names:
            if (holder := locks.acquire(name, _OWNER, _LEASE)) != _OWNER:
                raise Refused(
                    f"config shared true: {name} is locked by run {holder.rpartition('/')[0]}, "
                    "which may drop marks with their rows: try again when it has ended"
                )
        require_agreement(stores, shared=True)  # again: a worker may have begun between the samples
        yield
    finally:
        for name in names:
            with suppress(MailsliceError):  # a cleanup waits for longer than a lease
                locks.release(name, _OWNER)


def _require_no_messages(stores: Stores) -> None:
    """Raises Refused. Dead letters may stay: a redrive refuses mails with neither row nor mark."""
    from mailslice.stores.rabbitmq.traffic import traffic

    waiting = stores.management.alarms()  # a publish that raised may come later
    for name, figures in traffic(stores.management).items():
        count = figures.depth.total if figures.depth else "no figures yet"
        if count and name.startswith((WORK_QUEUE_PREFIX, OWN_PREFIX)):
            waiting.append(f"{name}: {count}")
    if waiting:
        raise Refused(
            f"config shared true: mails may wait in RabbitMQ ({'; '.join(waiting[:_SHOWN])}; "
            f"{len(waiting)} in all), and their deleted marks may be dropped: workers of a shared "
            "queue would hand them out. Let workers empty these queues under the stored value "
            "(`mailslice queue flush` brings delayed mails), stop them, try again"
        )


def require_agreement(stores: Stores, *, shared: bool) -> None:
    """Raises ConfigurationDiffers while a worker of any queue runs with the other answer."""
    others = [one for one in workers_that_differ(stores, shared=shared) if not one[1].ended]
    running = [one for one in others if one[1].shared is not None and one[1].silence < _RUNNING]
    if running:
        own = configured(stores.settings) is shared  # else the command line says it
        source = f" ({stores.settings.where(VARIABLE)})" if own else ""
        who = ", ".join(f"{record.worker} (queue {queue!r})" for queue, record in running[:_SHOWN])
        raise ConfigurationDiffers(
            f"{VARIABLE}={_text(shared)}{source}, but workers that use {_text(not shared)} were "
            f"alive within the last {_RUNNING.seconds} s, {len(running)} in all: {who}. Stop them "
            "first, then start all with the same value"
        )


def is_alone(stores: Stores, queue: QueueName) -> bool:
    """Whether neither the stored answer nor a worker of the last day says that James works here."""
    return not stored(stores) and not workers_that_differ(stores, shared=False, queue=queue)


def workers_that_differ(
    stores: Stores, *, shared: bool, queue: QueueName | None = None
) -> list[tuple[QueueName, WorkerRecord]]:
    """Queue and record of the workers of the last day whose answer is another, or unknown."""
    from mailslice.stores.cassandra.own import WorkerRecords

    records = WorkerRecords.existing(stores.cassandra, stores.settings)
    if records is None:
        return []
    return [
        (name, record)
        for name in ([queue] if queue is not None else list(records.queues()))
        for record in records.list(name)
        if record.shared is not shared
    ]


def _text(shared: bool) -> str:
    return "true" if shared else "false"
