"""What a reader of the workers' records knows of the mails that they do not list."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.admin.worker_history import WorkerHistory
from mailslice.model.clock import system_clock
from mailslice.model.mail import EnqueueId
from mailslice.model.names import queue_name
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord


def record(mails: int) -> WorkerRecord:
    now, second = system_clock(), timedelta(seconds=1)
    ids = (EnqueueId(UUID(int=number)) for number in range(mails))
    listed = tuple(InFlightMail(one, "m", second, "handler", 1, begun=True) for one in ids)
    return WorkerRecord("w", "h", 1, now, second, 5, listed, heartbeat=now, read_at=now)


def observed(*records: WorkerRecord) -> WorkerHistory:
    worker: Any = SimpleNamespace(record_every=timedelta(seconds=1))
    table: Any = SimpleNamespace(list=lambda _: records)
    stores: Any = SimpleNamespace(
        settings=SimpleNamespace(worker=worker), own=SimpleNamespace(worker_records=table)
    )
    history = WorkerHistory(stores, queue_name("spool"), lambda _: None, timedelta(0))
    history.observe()
    return history


@pytest.mark.parametrize(("mails", "is_cut"), [(999, False), (1000, True)])
def test_a_worker_that_may_have_more_mails_than_its_record_lists_may_have_missed_ones(
    mails: int, *, is_cut: bool
) -> None:
    history = observed(record(mails))
    assert (history.is_cut, history.missed) == (is_cut, is_cut)


def test_what_a_dead_worker_does_not_list_went_back_to_the_broker() -> None:
    dead = replace(record(1000), ended=True)
    assert (observed(dead).is_cut, observed(dead).missed) == (False, False)
