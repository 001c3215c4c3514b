from __future__ import annotations

import os
import sys
from importlib import import_module

import pytest

from mailslice.bench.isolated import isolated
from mailslice.model.errors import MailsliceError, StoreUnavailable


def _away() -> None:
    raise ExceptionGroup("tasks", [ExceptionGroup("more", [StoreUnavailable("S3 at nowhere")])])


def test_what_a_process_of_its_own_gives_comes_back() -> None:
    assert isolated(os.getpid) != os.getpid()


def test_what_fails_there_is_raised_here() -> None:
    with pytest.raises(StoreUnavailable, match="S3 at nowhere"):
        isolated(_away)


def test_a_process_that_ends_without_a_word_is_an_error() -> None:
    with pytest.raises(MailsliceError, match="exit code 7"):
        isolated(os._exit, 7)


def test_a_process_of_its_own_may_have_processes_of_its_own() -> None:
    assert isolated(isolated, os.getpid) != os.getpid()


def test_a_coroutine_is_awaited_there() -> None:
    assert isolated(_later) == "done"


async def _later() -> str:
    return "done"


def test_the_driver_of_such_a_process_has_no_numpy() -> None:
    """The module of the function is imported after numpy is kept out, whatever it imports."""
    assert isolated(_has_numpy) is False


def _has_numpy() -> bool:
    import_module("mailslice.bench.measure")
    return "numpy" in sys.modules
