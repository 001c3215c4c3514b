"""The figures of workers, by their records."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from mailslice.cli import worker_top
from mailslice.cli.worker_top import Top, table, worker_figures
from mailslice.maintenance.health import Health, HealthVerdict
from mailslice.maintenance.overview import QueueOverview
from mailslice.model.holds import Hold
from mailslice.model.mail import EnqueueId, QueueName
from mailslice.model.names import RabbitNames
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
    figures = worker_figures([record("a", ended=False), record("b", ended=True)])
    assert (figures["workers"], figures["completed"], figures["notCompleted"]) == (1, 7, 3)


def test_a_worker_without_mails_lives_between_the_records_that_it_writes_once_a_minute() -> None:
    records = [
        record("idle", silent=62),
        record("long gone", silent=80),
        record("hangs", silent=40, holds=True),
        record("busy", silent=4, holds=True),
    ]
    figures = worker_figures(records)
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


def test_workers_and_holds_of_all_queues_are_asked_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, other = queues = [QueueName("held"), QueueName("other")]
    asked: list[Sequence[QueueName]] = []
    hold = Hold(held, "", NOW, None, "ada", "a full disk", "1")

    def overview(*_: object) -> list[QueueOverview]:
        verdicts = {held: Health.HELD, other: Health.OK}
        return [
            QueueOverview(queue, HealthVerdict(word, "why", "next"), None, None, None, holds=holds)
            for (queue, word), holds in zip(verdicts.items(), [(hold,), ()], strict=True)
        ]

    def workers_of(names: Sequence[QueueName]) -> dict[QueueName, list[WorkerRecord]]:
        asked.append(names)
        return {other: [record("a")]}

    view = SimpleNamespace(live_summary=lambda _: None)
    monkeypatch.setattr(worker_top, "overview", overview)
    monkeypatch.setattr(worker_top, "MailQueue", lambda *_: view)
    depth = {"messages_ready": 1, "messages_unacknowledged": 0, "consumers": 0, "type": "classic"}
    checked_out = {**depth, "messages_unacknowledged": 2}
    management = SimpleNamespace(
        queues=lambda _: [
            *({"name": RabbitNames(one).work_queue, **depth} for one in queues),
            {"name": RabbitNames(other).dead_letter_queue, **checked_out},
        ],
        mail_queues=lambda: queues,
        alarms=list,
    )
    stores: Any = SimpleNamespace(management=management, workers_of=workers_of)
    first, second = Top(stores, []).rows()
    assert (first["queue"], first["health"], first["workers"]) == ("held", "HELD", 0)
    assert first["problems"] == [f"held: {hold.sentence}"]
    assert (second["queue"], second["health"], second["workers"]) == ("other", "OK", 1)
    assert second["problems"] == ["nobody consumes 1 ready messages"]
    assert (first["deadLetters"], second["deadLetters"]) == (None, 3)
    assert asked == [("held", "other")]
