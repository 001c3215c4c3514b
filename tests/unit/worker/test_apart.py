from __future__ import annotations

import os

import pytest

from mailslice.model.errors import MailsliceError, StoreUnavailable
from mailslice.worker.apart import apart


def _away() -> None:
    raise ExceptionGroup("tasks", [ExceptionGroup("more", [StoreUnavailable("S3 at nowhere")])])


def test_what_a_process_of_its_own_gives_comes_back() -> None:
    assert apart(os.getpid) != os.getpid()


def test_what_fails_there_is_raised_here() -> None:
    with pytest.raises(StoreUnavailable, match="S3 at nowhere"):
        apart(_away)


def test_a_process_that_ends_without_a_word_is_an_error() -> None:
    with pytest.raises(MailsliceError, match="exit code 7"):
        apart(os._exit, 7)


def test_a_process_of_its_own_may_have_processes_of_its_own() -> None:
    assert apart(apart, os.getpid) != os.getpid()
