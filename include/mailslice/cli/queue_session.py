"""Opens the queue of a command: settings, stores, a known queue, a checked configuration."""

from __future__ import annotations

import asyncio
import getpass
import socket
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mailslice.cli.output import plain
from mailslice.codec.shown import shown
from mailslice.maintenance.decision_files import write_decision
from mailslice.model.clock import system_clock
from mailslice.model.configuration import ViewConfiguration
from mailslice.model.errors import BadInput, Refused
from mailslice.model.settings import Settings, load_settings
from mailslice.stores import Stores

if TYPE_CHECKING:
    from mailslice.admin.mail_queue import MailQueue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """A known queue whose configuration was compared with the stored one."""

    settings: Settings
    stores: Stores
    queue: MailQueue
    configuration: ViewConfiguration


def open_stores() -> Stores:
    """The stores of the settings, as a context manager."""
    return Stores(load_settings())


@contextmanager
def open_queue(name: str, *, create: bool = False) -> Iterator[OpenQueue]:
    """The queue `name`. `create` makes missing tables and stores a missing configuration.

    Raises UnknownQueue and ConfigurationDiffers; BadSetting for missing tables.
    """
    from mailslice.admin import queues
    from mailslice.admin.mail_queue import MailQueue
    from mailslice.view.configuration import ConfigurationGuard

    with open_stores() as stores:
        queues.require(stores, name)
        stored = ConfigurationGuard(stores.tables, stores.settings)
        agreed = stored.ensure() if create else stored.agreed()
        yield OpenQueue(stores.settings, stores, MailQueue(stores, name, system_clock), agreed)


def who() -> str:
    """Who acts, for decisions and ledger rows: user@host, in UTF-8."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}".encode("utf-8", "replace").decode()


def confirm(question: str) -> None:
    """Ask on stderr. Refused unless the reply is y or yes."""
    print(f"{shown(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Refused("not confirmed: nothing was changed")


def need_yes(yes: bool, doing: str) -> None:
    """Raises BadInput when there is neither --yes nor a terminal to ask on."""
    if not yes and not sys.stdin.isatty():
        raise BadInput(
            f"{doing} asks first, and there is no terminal to ask on: give --yes (or "
            "--dry-run to only see how many)"
        )


def may_ask(yes: bool) -> bool:
    """Whether to ask a person: only at a terminal and without --yes. Scripts are not asked."""
    return not yes and sys.stdin.isatty()


def record(
    settings: Settings, action: str, queue: str | None, reason: str | None, **facts: object
) -> None:
    """Writes who did what and why to a JSON file in `decisions/` of the artifacts, or warns."""
    write_decision(
        settings,
        system_clock(),
        who=who(),
        action=action,
        queue=queue,
        reason=reason,
        facts=plain(facts),
    )


def run(work: Coroutine[object, object, T]) -> T:
    """Run `work` on a uvloop, as the worker processes do; Ctrl-C cancels it and it unwinds."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
