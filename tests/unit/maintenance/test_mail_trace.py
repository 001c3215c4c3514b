"""`mail trace`: what does not answer is unknown, never no."""

from __future__ import annotations

import io
import json
import os
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mailslice.maintenance import mail_trace
from mailslice.maintenance.mail_trace import (
    Trace,
    TracedMail,
    events_in,
    events_of,
    in_order,
)
from mailslice.model.errors import BadInput, MailsliceError, StoreUnavailable
from mailslice.model.names import queue_name
from mailslice.stores.cassandra.own import Decisions, MovingMails
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.stores.cassandra.own.table import OwnTable

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
    tracing = Trace(stores, TracedMail.of(text), [queue_name(queue) for queue in queues])
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
    tracing = Trace(Away(), TracedMail.of(text), [])  # type: ignore[arg-type]
    entries = tracing.run(events_of(TracedMail.of(text), [f"{tmp_path}/worker.log*"]))
    told = [(one["source"], one["says"]) for one in entries if one["answer"] == "yes"]
    assert told == [("log", "accepted"), ("log", "delivered; answer: 250 OK")]


def test_the_newest_part_of_large_logs_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_trace, "MAX_READ", 500)
    lines = [json.dumps({"event": "attempt", "enqueueId": str(ID), "attempt": n}) for n in range(9)]
    for age, name in enumerate(("new", "old")):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    events = events_of(TracedMail.of(str(ID)), [f"{tmp_path}/*"])
    assert [event["attempt"] for event in events] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["nothing*", "folder"])
def test_a_log_that_cannot_be_read_is_unknown(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    tracing = Trace(Away(), TracedMail.of(str(ID)), [])  # type: ignore[arg-type]
    (entry,) = (
        one
        for one in tracing.run(events_of(TracedMail.of(str(ID)), [f"{tmp_path}/{name}"]))
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
        tracing.raise_for(str(ID))


def test_no_store_that_is_away_says_no_and_each_is_asked_once() -> None:
    tracing, entries = trace(str(ID), "spool", "outgoing")
    assert {one["answer"] for one in entries} == {"unknown"}
    assert len(entries) == 26
    with pytest.raises(StoreUnavailable, match="26 places did not answer"):
        tracing.raise_for(str(ID))


def test_marks_and_delays_are_not_asked_for_a_name_without_an_id() -> None:
    _, entries = trace("m", "spool")
    by_source = {one["source"]: one["answer"] for one in entries}
    assert by_source["deleted mark"] == by_source["delayed"] == "not asked"
    assert by_source["view"] == "unknown"


@pytest.mark.parametrize(
    ("count", "answer", "says"),
    [
        (0, "no", None),
        (3, "unknown", "3 messages are parked for a minute; no store lists them"),
        (None, "unknown", "some messages are parked for a minute; no store lists them"),
    ],
)
def test_parked_messages_leave_it_unknown_where_a_mail_is(
    count: int | None, answer: str, says: str | None
) -> None:
    class Refusing:
        management = SimpleNamespace(messages=lambda _queue: count)

        def __getattr__(self, name: str) -> Any:
            raise MailsliceError(f"{name} is refused")

    stores: Any = Refusing()
    entries = Trace(stores, TracedMail.of("m"), [queue_name("spool")]).run([])
    (entry,) = (one for one in entries if one["source"] == "parked")
    assert entry["answer"] == answer
    assert says is None or says in str(entry["says"])


def test_a_mail_that_every_place_denies_is_bad_input() -> None:
    tracing = Trace(SimpleNamespace(), TracedMail.of("m"), [])  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="no store knows 'm'"):
        tracing.raise_for("m")


AT = datetime(2026, 11, 23, 6, tzinfo=UTC)


class Mute:
    """Stores of which all is denied but what tests put in place of the own tables."""

    cassandra = None
    settings = SimpleNamespace(duty=SimpleNamespace(retention=timedelta(days=90)))

    def __getattr__(self, name: str) -> Any:
        raise MailsliceError(f"no {name} here")


def answers_of(monkeypatch: pytest.MonkeyPatch, text: str, source: str, *moving: Any) -> list[Any]:
    """What the source says of the mail, and whether it knows."""
    tables = {MovingMails: SimpleNamespace(list=lambda _: iter(moving))}
    existing = classmethod(lambda cls, *_: tables.get(cls))
    monkeypatch.setattr(OwnTable, "existing", existing)
    stores: Any = Mute()
    tracing = Trace(
        stores, TracedMail.of(text), [queue_name("spool")], without={mail_trace.RABBITMQ}
    )
    entries = [one for one in tracing.run() if one["source"] == source]
    return [(one["answer"], one["time"], one["says"]) for one in entries]


def moving_mail(state: State, to: str, **more: Any) -> Any:
    about = {"decided": AT, "who": "ada", "why": "a full disk", "released_as": None, **more}
    return SimpleNamespace(enqueue_id=ID, name="m", state=state, moved_to=to, **about)


@pytest.mark.parametrize("text", [str(ID), "m", str(UUID(int=9))])
@pytest.mark.parametrize(
    ("state", "to", "says"),
    [
        (State.CLOSING, "outgoing", "a move to outgoing, pending: the mail is in its queue yet; "),
        (State.KEPT, "outgoing", "a move to outgoing, doubtful: it may have been delivered since"),
        (State.TAKEN, "spool", "a delay within spool as 00000000-0000-0000-0000-000000000009, "),
        (State.RELEASED, "outgoing", "a move to outgoing, released: it is over by ada"),
    ],
)
def test_a_mail_that_a_move_holds_is_known_with_the_command_that_finishes_it(
    monkeypatch: pytest.MonkeyPatch, text: str, state: State, to: str, says: str
) -> None:
    other = moving_mail(State.TAKEN, "outgoing")
    other.enqueue_id, other.name = UUID(int=8), "n"
    mail = moving_mail(state, to, released_as=UUID(int=9))
    ((answer, time, said),) = answers_of(monkeypatch, text, "moving", other, mail)
    assert (answer, time) == ("yes", AT)
    assert said.startswith(says)
    assert said.endswith("by ada: a full disk")
    words = "delay spool --for 1m" if to == "spool" else "move spool outgoing"
    command = f"`mailslice queue {words} --id {ID} --yes` finishes it"
    assert (command in said) == (state is not State.RELEASED)
    assert ("--accept-duplicates" in said) == (state is State.KEPT)


def test_the_command_that_finishes_a_move_is_one_whatever_the_queues_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mail = moving_mail(State.TAKEN, "two words")
    ((_, _, said),) = answers_of(monkeypatch, str(ID), "moving", mail)
    command = shlex.split(said.split("`")[1])
    assert command[:5] == ["mailslice", "queue", "move", "spool", "two words"]


def deleted(monkeypatch: pytest.MonkeyPatch, mails: int = 1, **more: Any) -> None:
    """A run that keeps the mail, and an older one."""
    about = {"is_back": False, "undeleted": None, "may_be_delivered": False, **more}
    batch = SimpleNamespace(run="r2", deleted=AT, until=AT, who="ada", reason="spam")
    kept = SimpleNamespace(content=about.pop("content", "packed"))
    kept.item = SimpleNamespace(mail=SimpleNamespace(name="m"))
    found = SimpleNamespace(batch=batch, kept=kept, enqueue_id=ID, **about)
    runs = [{"run": "r2", "mails": mails}, {"run": "r1", "mails": 1}]
    monkeypatch.setattr("mailslice.maintenance.mail_trace.deleted_runs", lambda *_: iter(runs))

    def deleted_mails(_stores: Any, _queue: Any, _now: Any, chosen: Any, run: str) -> Any:
        assert (chosen.ids, chosen.name) in {(frozenset({ID}), None), (None, "m")}
        return iter([[found]] if run == "r2" else [])

    monkeypatch.setattr("mailslice.maintenance.mail_trace.deleted_mails", deleted_mails)


@pytest.mark.parametrize("text", [str(ID), "m"])
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {},
            f"06:00:00Z: `mailslice queue undelete spool --run r2 --id {ID} --yes` brings it back",
        ),
        ({"may_be_delivered": True}, "--yes --accept-duplicates` brings it back"),
        ({"content": "lost"}, "kept until 2026-11-23T06:00:00Z, without content"),
        (
            {"is_back": True, "undeleted": SimpleNamespace(new_id=UUID(int=9))},
            f"brought back as {UUID(int=9)}",
        ),
    ],
)
def test_a_mail_that_a_delete_keeps_is_known_with_its_run_and_end(
    monkeypatch: pytest.MonkeyPatch, text: str, more: dict[str, Any], says: str
) -> None:
    deleted(monkeypatch, **more)
    ((answer, time, said),) = answers_of(monkeypatch, text, "deleted")
    assert (answer, time) == ("yes", AT)
    assert said.startswith("deleted by ada, run r2: spam; ")
    assert said.endswith(says)


def test_deletes_of_too_many_mails_are_unknown_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deleted(monkeypatch, mails=mail_trace.MAX_DELETED + 1)
    ((answer, _, said),) = answers_of(monkeypatch, str(ID), "deleted")
    assert answer == "unknown"
    assert said.startswith("100001 mails that deletes keep were not read")
    deleted(monkeypatch, mails=mail_trace.MAX_DELETED)
    answers = [answer for answer, _, _ in answers_of(monkeypatch, str(ID), "deleted")]
    assert answers == ["yes", "unknown"]


@pytest.mark.parametrize("queue", [[], ["spool"]])
def test_the_days_of_decisions_are_asked_for_once_for_all_queues(
    monkeypatch: pytest.MonkeyPatch, queue: list[str]
) -> None:
    """Of one queue each day is read: that costs less than all names of days."""
    asked: list[object] = []
    row = SimpleNamespace(enqueue_id=ID, name="m", decided=AT, who="ada", verdict="stuck")
    row.action, row.worker, row.why = "release", "w", "it hung"

    def listed(name: str, _since: object, _until: object, days: object = None) -> Any:
        asked.append((name, days))
        return iter([row])

    def days(*_: object) -> dict[str, list[str]]:
        asked.append("days")
        return {"spool": ["2026-11-23"]}

    table = SimpleNamespace(list=listed, days=days)
    existing = classmethod(lambda cls, *_: table if cls is Decisions else None)
    monkeypatch.setattr(OwnTable, "existing", existing)
    stores: Any = Mute()
    stores.rabbitmq = SimpleNamespace(names=lambda: [queue_name("other"), queue_name("spool")])
    tracing = Trace(
        stores, TracedMail.of("m"), map(queue_name, queue), without={mail_trace.RABBITMQ}
    )
    says = [one["says"] for one in tracing.run() if one["source"] == "decisions"]
    assert says[-1] == "release by ada (stuck, worker w): it hung"
    every_day = [("spool", None)]
    assert asked == (every_day if queue else ["days", ("other", ()), ("spool", ["2026-11-23"])])
