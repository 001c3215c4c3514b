"""The figures of workers, by their records."""

from __future__ import annotations

import io
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from rich.console import Console

from mailslice.cli.worker_top import of_workers, table
from mailslice.model.mail import EnqueueId
from mailslice.stores.cassandra.own import InFlightMail, WorkerRecord

NOW = datetime(2026, 11, 27, tzinfo=UTC)


MAIL = InFlightMail(EnqueueId(UUID(int=1)), "m", timedelta(seconds=1), "loaded", 1, begun=True)


def record(
    worker: str, *, ended: bool = False, silent: float = 0.0, holds: bool = False
) -> WorkerRecord:
    return WorkerRecord(
        worker=worker,
        host="h",
        pid=1,
        started=NOW,
        every=timedelta(seconds=5),
        beat=3,
        in_flight=(MAIL,) if holds else (),
        settled=10,
        completed=7,
        ended=ended,
        heartbeat=NOW - timedelta(seconds=silent),
        read_at=NOW,
    )


def test_a_worker_that_has_ended_is_not_counted() -> None:
    figures = of_workers([record("a", ended=False), record("b", ended=True)])
    assert (figures["workers"], figures["completed"], figures["notCompleted"]) == (1, 7, 3)


def test_a_worker_without_mails_lives_between_the_records_that_it_writes_once_a_minute() -> None:
    records = [
        record("idle", silent=62),
        record("long gone", silent=80),
        record("hangs", silent=40, holds=True),
        record("busy", silent=4, holds=True),
    ]
    figures = of_workers(records)
    assert (figures["workers"], figures["inHandlers"]) == (2, 1)


@pytest.mark.parametrize("width", [40, 80, 120, 250])
def test_a_terminal_shows_the_columns_that_fit_and_cuts_no_figure(width: int) -> None:
    row = defaultdict(lambda: 123456, queue="spool", health="NO WORKERS", problems=[])
    out = io.StringIO()
    Console(width=width, file=out).print(table([row], "", width))
    text = out.getvalue()
    title, _, figures, *_ = text.strip().splitlines()
    assert figures.split()[:3] == ["spool", "NO", "WORKERS"]
    assert all("123456" in figure for figure in figures.split()[3:])
    assert len(title.split()) == len(figures.split()) - 1
    assert ("more columns need a wider terminal" in text) == (width < 250)
