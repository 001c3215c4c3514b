"""`mail trace`: what does not answer is unknown, never no."""

from __future__ import annotations

import io
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.maintenance import mail_trace
from mailslice.maintenance.mail_trace import (
    Trace,
    Wanted,
    events_in,
    events_of,
    in_order,
    raise_for,
)
from mailslice.model.errors import BadInput, StoreUnavailable
from mailslice.model.names import queue_name

ID = UUID(int=7)
LOG = f"""\
2026-11-23 06:00:00 INFO mailslice: text for people
{{"time": "2026-11-23T06:00:02Z", "event": "delivered", "enqueueId": "{ID}", "name": "m",\
 "queue": "spool", "answer": "250 OK"}}
{{"time": "2026-11-23T06:00:01Z", "event": "accepted", "enqueueId": "{ID}", "name": "m"}}
{{"time": "2026-11-23T06:00:01Z", "event": "accepted", "enqueueId": "{UUID(int=8)}", "name": "n"}}
{{"half a line
[1]
"""


class Away:
    """Stores of which none answers; `asked` counts."""

    def __init__(self) -> None:
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        raise StoreUnavailable(f"{name} does not answer")


def trace(text: str, *queues: str, log: str = "") -> tuple[Trace, list[dict[str, object]]]:
    stores: Any = Away()
    tracing = Trace(stores, Wanted.of(text), [queue_name(queue) for queue in queues])
    return tracing, tracing.run(events_in(io.StringIO(log)))


@pytest.mark.parametrize("text", [str(ID), "m"])
def test_a_log_tells_the_events_of_the_mail_oldest_first(text: str) -> None:
    _, entries = trace(text, log=LOG)
    told = [(one["source"], one["says"]) for one in entries if one["answer"] == "yes"]
    assert told == [("log", "accepted"), ("log", "delivered; answer: 250 OK")]


@pytest.mark.parametrize("text", [str(ID).upper(), "m"])
def test_files_of_the_settings_are_read_by_their_patterns(text: str, tmp_path: Path) -> None:
    first, _, last = LOG.partition('{"time": "2026-11-23T06:00:01Z"')
    (tmp_path / "worker.log.1").write_text(first)
    (tmp_path / "worker.log").write_text(f'{{"time": "2026-11-23T06:00:01Z"{last}')
    tracing = Trace(Away(), Wanted.of(text), [])  # type: ignore[arg-type]
    entries = tracing.run(events_of(Wanted.of(text), [f"{tmp_path}/worker.log*"]))
    told = [(one["source"], one["says"]) for one in entries if one["answer"] == "yes"]
    assert told == [("log", "accepted"), ("log", "delivered; answer: 250 OK")]


def test_the_newest_part_of_large_logs_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_trace, "MOST_READ", 500)
    lines = [json.dumps({"event": "attempt", "enqueueId": str(ID), "attempt": n}) for n in range(9)]
    for age, name in enumerate(("new", "old")):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    events = events_of(Wanted.of(str(ID)), [f"{tmp_path}/*"])
    assert [event["attempt"] for event in events] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["nothing*", "folder"])
def test_a_log_that_cannot_be_read_is_unknown(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    tracing = Trace(Away(), Wanted.of(str(ID)), [])  # type: ignore[arg-type]
    (entry,) = (
        one
        for one in tracing.run(events_of(Wanted.of(str(ID)), [f"{tmp_path}/{name}"]))
        if one["source"] == "log"
    )
    assert entry["answer"] == "unknown"
    assert str(tmp_path) in str(entry["says"])


def test_what_stores_and_a_log_say_is_in_one_order() -> None:
    store = datetime(2026, 11, 23, 6, 0, 1, 500_000, tzinfo=UTC)
    times = [None, "2026-11-23T06:00:02Z", store, "2026-11-23T06:00:01.4Z", "2026-11-23T06:00:01Z"]
    entries = in_order([{"time": time} for time in times])
    assert [one["time"] for one in entries] == [times[4], times[3], store, times[1], None]


def test_without_a_broker_it_is_unknown_which_queues_there_are() -> None:
    tracing, entries = trace(str(ID))
    assert [(one["source"], one["answer"]) for one in entries] == [("queues", "unknown")]
    with pytest.raises(StoreUnavailable, match="name one by --queue"):
        raise_for(tracing, str(ID))


def test_no_store_that_is_away_says_no_and_each_is_asked_once() -> None:
    tracing, entries = trace(str(ID), "spool", "outgoing")
    assert {one["answer"] for one in entries} == {"unknown"}
    assert len(entries) == 22
    with pytest.raises(StoreUnavailable, match="22 places did not answer"):
        raise_for(tracing, str(ID))


def test_marks_and_delays_are_not_asked_for_a_name_without_an_id() -> None:
    _, entries = trace("m", "spool")
    by_source = {one["source"]: one["answer"] for one in entries}
    assert by_source["deleted mark"] == by_source["delayed"] == "not asked"
    assert by_source["view"] == "unknown"


def test_a_mail_that_every_place_denies_is_bad_input() -> None:
    tracing = Trace(SimpleNamespace(), Wanted.of("m"), [])  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="no place knows 'm'"):
        raise_for(tracing, "m")
