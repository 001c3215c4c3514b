"""From `package.module:function` to something that can be called for each mail.

A handler is `def handle(mail, content)` or `async def handle(mail, content)`; it may take a keyword `enqueue_id`, too, the identity of the
queue entry, which stays the same when a mail is delivered again, a keyword `stage`, to mark its progress with (`handler_stage`), and, if it is a
plain function, a keyword `throttle`, to ask whether destinations take a mail now (`throttle`).
A class is built once a process, with the settings, and its instance is called.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mailslice.model.errors import BadInput, MailsliceError
from mailslice.model.mail import EnqueueId, Mail
from mailslice.model.settings import Settings
from mailslice.worker.handler_stage import AsyncStage, BlockingStage
from mailslice.worker.throttle import BlockingThrottle

SHIPPED = {
    "relay": "mailslice.worker.handlers.relay:Relay",
    "maildir": "mailslice.worker.handlers.maildir:MaildirHandler",
}
"""Short names of the handlers that come with mailslice."""
_ALLOWED = "allowed: package.module:function, " + ", ".join(SHIPPED)


@dataclass(frozen=True, slots=True)
class LoadedHandler:
    """A handler ready to be called. What `call` gives is an outcome, or an awaitable of one."""

    call: Callable[..., Any]
    is_async: bool
    takes_enqueue_id: bool
    takes_stage: bool = False
    takes_throttle: bool = False

    def __call__(
        self,
        mail: Mail,
        content: bytes,
        enqueue_id: EnqueueId,
        stage: BlockingStage | AsyncStage | None = None,
        throttle: BlockingThrottle | None = None,
    ) -> Any:
        """One attempt at one mail. `stage` and `throttle` are needed where they are taken."""
        given: dict[str, object] = {"enqueue_id": enqueue_id} if self.takes_enqueue_id else {}
        if self.takes_stage:
            given["stage"] = stage
        if self.takes_throttle:
            given["throttle"] = throttle
        return self.call(mail, content, **given)


def load_handler(spec: str, settings: Settings) -> LoadedHandler:
    """The handler that `spec` names. BadInput, naming it and what is wrong, when there is none; the working folder is searched, too."""
    module_name, colon, path = SHIPPED.get(spec, spec).partition(":")
    if not (module_name and colon and path):
        raise BadInput(f"--handler {spec!r} names no function; {_ALLOWED}")
    found = _attribute(spec, _module(spec, module_name), path)
    if inspect.isclass(found):
        found = _built(spec, found, settings)
    if not callable(found):
        raise BadInput(
            f"--handler {spec!r}: {path} is a {type(found).__name__}, which cannot be called; {_ALLOWED}"
        )
    return LoadedHandler(found, _is_async(found), *_keywords(f"--handler {spec!r}", found))


def loaded(handler: Callable[..., Any]) -> LoadedHandler:
    """A handler that is at hand: a function, or an object that can be called. BadInput when it cannot be called as (mail, content)."""
    name = f"handler {getattr(handler, '__qualname__', handler)!r}"
    if inspect.isclass(handler) or not callable(handler):
        raise BadInput(
            f"{name}: allowed are functions, and objects that can be called as (mail, content)"
        )
    return LoadedHandler(handler, _is_async(handler), *_keywords(name, handler))


def _module(spec: str, name: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except (
        Exception,
        SystemExit,
    ) as error:  # a script that was not meant to be imported ends the process
        raise BadInput(
            f"--handler {spec!r}: module {name!r} cannot be imported: {type(error).__name__}: {error}; {_ALLOWED}"
        ) from error


def _attribute(spec: str, module: Any, path: str) -> Any:
    found = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise BadInput(f"--handler {spec!r}: {module.__name__} has no {path!r}; {_ALLOWED}")
        found = getattr(found, part)
    return found


def _built(spec: str, cls: Callable[[Settings], Any], settings: Settings) -> Any:
    try:
        return cls(settings)
    except MailsliceError:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"--handler {spec!r}: the class cannot be built with the settings: {type(error).__name__}: {error}"
        ) from error


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        type(handler).__call__
    )


def _keywords(what: str, handler: Callable[..., Any]) -> tuple[bool, bool, bool]:
    """Whether it takes `enqueue_id`, `stage`, and, by this very name, `throttle`."""
    try:
        signature = inspect.signature(handler)
    except ValueError:  # a built-in that tells no signature: believed
        return False, False, False
    takes = {
        name: any(p.name == name or p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        for name in ("enqueue_id", "stage")
    }
    takes["throttle"] = "throttle" in signature.parameters and not _is_async(handler)
    try:
        signature.bind(None, b"", **{name: None for name, taken in takes.items() if taken})
    except TypeError as error:
        raise BadInput(f"{what} cannot be called as (mail, content): {error}") from None
    return takes["enqueue_id"], takes["stage"], takes["throttle"]
