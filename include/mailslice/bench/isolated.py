"""Runs functions in new processes, whose memory and caches nothing else has used."""

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
    """The result of `function`, awaited if it is a coroutine. Raises its MailsliceError."""
    with Process(_alone, function, arguments, named) as process:
        return process.answer()


class Process:
    """A child that runs `function(pipe, *arguments)`; a coroutine runs on uvloop.

    The child sends answers through the pipe, its result last. `answer` raises its MailsliceError.
    The end of the block waits for the child. The child ends when this process does.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        work = (_Lean(), child_pipe, function, arguments)
        # Not a daemon: multiprocessing forbids daemons to have children.
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
        """Sends this value to the child, which waits for it."""
        self._pipe.send(value)

    def answer(self) -> Any:
        """The child's next answer. Raises its MailsliceError, or one that says that it died."""
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
    """Keeps numpy out of the child: unpickled before `function`, which may import the driver."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return without_numpy, ()


def _answer(
    _: object, pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its children
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        result = function(pipe, *arguments)
        pipe.send(run(result) if asyncio.iscoroutine(result) else result)
    except* MailsliceError as errors:
        pipe.send(_first(errors))


def _first(errors: BaseExceptionGroup[MailsliceError]) -> MailsliceError:
    """The first error of a group, whose groups may be nested."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _alone(
    _: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    return function(*arguments, **named)
