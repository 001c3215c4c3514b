"""Loads a handler: from `package.module:function` to a callable for each mail.

A handler is `def handle(mail, content)` or `async def handle(mail, content)`. It gets more by
keywords that it names:

- `enqueue_id`: the identity of the queue entry, the same whenever the mail is delivered again;
- `stage`: to mark its progress with (`handler_stage`);
- `redelivered`: whether the mail may have been in a handler before;
- `arrived`: when the broker delivered the mail, by `time.monotonic()`;
- `stopping`: a `threading.Event`, set when the worker ends: begin nothing that can wait;
- `throttle`: plain functions only; asks if destinations take a mail now (`destination_throttle`).

A class is built once a process, with the settings, and its instance is called.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mailslice.model.errors import BadInput, MailsliceError
from mailslice.model.settings import Settings

SHIPPED = {
    "relay": "mailslice.worker.handlers.relay:Relay",
    "maildir": "mailslice.worker.handlers.maildir:MaildirHandler",
}
"""Short names of the handlers that come with mailslice."""
_ALLOWED = "allowed: package.module:function, " + ", ".join(SHIPPED)
_BY_ANY_KEYWORD = ("enqueue_id", "stage")
"""These are given to a handler with `**keywords`, too; the others only to one that names them."""
_BY_NAME = ("redelivered", "arrived", "stopping", "throttle")


@dataclass(frozen=True, slots=True)
class LoadedHandler:
    """A handler. `call` takes mail, content, and what it `takes`; gives an outcome or awaitable."""

    call: Callable[..., Any]
    is_async: bool
    takes: frozenset[str] = frozenset()


def load_handler(spec: str, settings: Settings) -> LoadedHandler:
    """The handler that `spec` names, installed or in the working folder. Raises BadInput."""
    module_name, colon, path = SHIPPED.get(spec, spec).partition(":")
    if not (module_name and colon and path):
        raise BadInput(f"--handler {spec!r} names no function; {_ALLOWED}")
    handler = _attribute(spec, _module(spec, module_name, own=spec not in SHIPPED), path)
    if inspect.isclass(handler):
        handler = _built(spec, handler, settings)
    if not callable(handler):
        raise BadInput(
            f"--handler {spec!r}: {path} is a {type(handler).__name__}, which cannot be called; "
            f"{_ALLOWED}"
        )
    return LoadedHandler(handler, _is_async(handler), _keywords(f"--handler {spec!r}", handler))


def checked_handler(handler: Callable[..., Any]) -> LoadedHandler:
    """A handler given as a callable. BadInput when it cannot be called as (mail, content)."""
    name = f"handler {getattr(handler, '__qualname__', handler)!r}"
    if inspect.isclass(handler) or not callable(handler):
        raise BadInput(
            f"{name}: allowed are functions, and objects that can be called as (mail, content)"
        )
    return LoadedHandler(handler, _is_async(handler), _keywords(name, handler))


def _module(spec: str, name: str, *, own: bool) -> Any:
    with suppress(OSError):  # a working folder that is gone has no module
        if own and (folder := str(Path.cwd())) not in sys.path:
            # At the end: a file `smtplib.py` there must not be what the worker imports later.
            sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # SystemExit: a script ends at its import
        raise BadInput(
            f"--handler {spec!r}: module {name!r} cannot be imported: "
            f"{type(error).__name__}: {error}; {_ALLOWED}"
        ) from error


def _attribute(spec: str, module: Any, path: str) -> Any:
    value = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise BadInput(f"--handler {spec!r}: {module.__name__} has no {path!r}; {_ALLOWED}")
        value = getattr(value, part)
    return value


def _built(spec: str, cls: Callable[[Settings], Any], settings: Settings) -> Any:
    try:
        return cls(settings)
    except MailsliceError:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"--handler {spec!r}: the class cannot be built with the settings: "
            f"{type(error).__name__}: {error}"
        ) from error


def _is_async(handler: Callable[..., Any]) -> bool:
    return any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__)))


def _keywords(subject: str, handler: Callable[..., Any]) -> frozenset[str]:
    """Names of the optional keywords that the handler takes."""
    try:
        parameters = inspect.signature(handler).parameters
    except ValueError:  # a built-in without a signature: not checked
        return frozenset()
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes = {name for name in _BY_ANY_KEYWORD if any_keyword or name in parameters}
    takes |= {name for name in _BY_NAME if name in parameters}
    if "throttle" in takes and _is_async(handler):
        raise BadInput(f"{subject} is async and names throttle, which is for plain functions")
    try:
        inspect.signature(handler).bind(None, b"", **dict.fromkeys(takes))
    except TypeError as error:
        raise BadInput(f"{subject} cannot be called as (mail, content): {error}") from None
    return frozenset(takes)
