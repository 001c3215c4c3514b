"""Functions in processes of their own, whose memory and caches nothing else has used; they end when this process does."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from mailslice.model.errors import MailsliceError
from mailslice.stores.cassandra.lean import without_numpy


def apart(function: Callable[..., Any], *given: Any) -> Any:
    """What `function(*given)` gives in a process of its own. Raises the MailsliceError that it raises."""
    with Process(_alone, function, *given) as process:
        return process.answer()


class Process:
    """A child that runs `function(pipe, *given)` and answers by the pipe, last with what the function gives; a MailsliceError of its own is raised here."""

    def __init__(self, function: Callable[..., Any], *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_answering, args=(theirs, function, given), daemon=False
        )  # it may have children
        self._process.start()
        theirs.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._process.terminate()
        self._process.join()
        self._pipe.close()

    def begin(self, given: object = None) -> None:
        """Lets it go on, and tells it something."""
        self._pipe.send(given)

    def answer(self) -> Any:
        """What it says next."""
        try:
            said = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise MailsliceError(
                f"a process of the benchmark ended with exit code {self._process.exitcode}"
            ) from None
        if isinstance(said, BaseException):
            raise said
        return said


def _answering(pipe: Connection, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which ends its children
    without_numpy()
    logging.getLogger().addHandler(
        logging.NullHandler()
    )  # what matters is raised, and said by the parent
    try:
        pipe.send(function(pipe, *given))
    except* MailsliceError as errors:
        pipe.send(_first(errors))


def _first(errors: BaseExceptionGroup[MailsliceError]) -> MailsliceError:
    """Of tasks that failed together, the first one's error."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _alone(_pipe: Connection, function: Callable[..., Any], *given: Any) -> Any:
    return function(*given)
