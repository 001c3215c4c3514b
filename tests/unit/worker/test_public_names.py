"""`mailslice.worker` offers all its public names, and importing it imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
import typing

import pytest

import mailslice.worker


def test_every_public_name_can_be_had_and_is_listed_once() -> None:
    assert (
        sorted(mailslice.worker.__all__)
        == sorted(set(mailslice.worker.__all__))
        == sorted(mailslice.worker._HOME_OF)
    )
    assert all(getattr(mailslice.worker, name) is not None for name in mailslice.worker.__all__)


def test_public_functions_and_methods_are_typed_and_documented() -> None:
    worker = mailslice.worker
    for thing in (worker.SyncQueue, worker.SyncDelivery):
        for name, method in vars(thing).items():
            if not name.startswith("_"):
                assert (getattr(method, "__doc__", None) or "").strip(), f"{thing.__name__}.{name}"
    for function in (worker.consume, worker.new_mail, worker.mail_of, worker.view_of):
        assert function.__doc__
        assert "return" in function.__annotations__
    assert typing.get_type_hints(worker.SyncQueue.enqueue)["return"] is worker.QueuedMail


def test_the_types_that_public_functions_take_are_public_and_a_queue_is_named_by_a_text() -> None:
    taken = typing.get_type_hints(mailslice.worker.open_worker)
    assert taken["queue"] is str
    assert {"EventLog", "QueueName"} <= set(mailslice.worker.__all__)


async def test_a_name_that_no_queue_can_have_is_bad_input_before_any_store_is_opened() -> None:
    worker = mailslice.worker
    with pytest.raises(worker.BadInput, match="a/b"):
        async with worker.open_worker(worker.load_settings({}), "a/b"):
            pass


def test_importing_the_package_is_quick_and_brings_no_driver() -> None:
    drivers = ("cassandra", "pika", "obstore", "boto3", "pydantic", "uvloop")
    code = f"import sys, mailslice.worker; print([n for n in {drivers} if n in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
