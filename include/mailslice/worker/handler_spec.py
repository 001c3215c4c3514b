"""From `package.module:function` to something that can be called for each mail.

A handler is `def handle(mail, content)` or `async def handle(mail, content)`; it may take a keyword `enqueue_id`, too, the identity of the
queue entry, which stays the same when a mail is delivered again. A class is built once a process, with the settings, and its instance is called.
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

    def __call__(self, mail: Mail, content: bytes, enqueue_id: EnqueueId) -> Any:
        """One attempt at one mail."""
        if self.takes_enqueue_id:
            return self.call(mail, content, enqueue_id=enqueue_id)
        return self.call(mail, content)


def load_handler(spec: str, settings: Settings) -> LoadedHandler:
    """The handler that `spec` names. BadInput, naming it and what is wrong, when there is none; the working folder is searched, too."""
    module_name, colon, path = SHIPPED.get(spec, spec).partition(":")
    if not (module_name and colon and path):
        raise BadInput(f"--handler {spec!r} names no function; {_ALLOWED}")
    found = _attribute(spec, _module(spec, module_name), path)
    if inspect.isclass(found):
        found = _built(spec, found, settings)
    if not callable(found):
        raise BadInput(f"--handler {spec!r}: {path} is a {type(found).__name__}, which cannot be called; {_ALLOWED}")
    return LoadedHandler(found, _is_async(found), _takes_enqueue_id(spec, found))


def _module(spec: str, name: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise BadInput(f"--handler {spec!r}: module {name!r} cannot be imported: {type(error).__name__}: {error}; {_ALLOWED}") from error


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
    except Exception as error:
        raise BadInput(f"--handler {spec!r}: the class cannot be built with the settings: {type(error).__name__}: {error}") from error


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _takes_enqueue_id(spec: str, handler: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(handler)
    except ValueError:  # a built-in that tells no signature: believed
        return False
    takes = any(p.name == "enqueue_id" or p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    try:
        signature.bind(None, b"", **({"enqueue_id": None} if takes else {}))
    except TypeError as error:
        raise BadInput(f"--handler {spec!r} cannot be called as (mail, content): {error}") from None
    return takes
