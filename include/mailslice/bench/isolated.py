"""Functions in processes of their own, whose memory and caches nothing else has used."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from mailslice.cli.queue_session import run
from mailslice.model.errors import MailsliceError
from mailslice.stores.cassandra.lean import without_numpy


def isolated(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The result of `function`, awaited where it is one to await. Raises its MailsliceError."""
    with Process(_alone, function, arguments, named) as process:
        return process.answer()


class Process:
    """A child that runs `function(pipe, *arguments)`, a coroutine on a uvloop.

    It answers by the pipe, last with its result; its MailsliceError is raised here. It ends when
    this process does.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        work = (_Lean(), child_pipe, function, arguments)
        # A daemon could have no children of its own.
        self._process: BaseProcess = context.Process(target=_answer, args=work, daemon=False)
        self._process.start()
        child_pipe.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._process.terminate()
        self._process.join()
        self._pipe.close()

    def send(self, value: object = None) -> None:
        """Lets the child go on, with this value."""
        self._pipe.send(value)

    def answer(self) -> Any:
        """The child's next answer."""
        try:
            value = self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            message = f"a process of the benchmark ended with exit code {code}"
            raise MailsliceError(message) from None
        if isinstance(value, BaseException):
            raise value
        return value


class _Lean:
    """Unpickled in the child before the function, whose module may import Cassandra's driver."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return without_numpy, ()


def _answer(
    _: object, pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends its children
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        result = function(pipe, *arguments)
        pipe.send(run(result) if asyncio.iscoroutine(result) else result)
    except* MailsliceError as errors:
        pipe.send(_first(errors))


def _first(errors: BaseExceptionGroup[MailsliceError]) -> MailsliceError:
    """Of tasks that failed together, the first one's error."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _alone(
    _: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    return function(*arguments, **named)
