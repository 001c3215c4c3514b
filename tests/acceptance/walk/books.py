"""The books of a random walk: the journals of all processes and the final state of the stores,
balanced mail by mail.

Events are flat dicts: `t` (seconds of CLOCK_MONOTONIC, one clock for all processes of a machine),
`who`, `do`, and more fields for each `do`:
  producer: asked (name, sender), accepted (name, id), refused (name, why)
  consumer: handed (id, name, checked: begin of the deleted check that let it pass, good: its
    content is right); completing, completed, rejecting, rejected, retrying, retried (id)
  administrator: deleting, deleted, delete-failed (sender, began);
    clearing, cleared, clear-failed (began)
  driver: fault, kill, start (what)
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_AROUND = 1.0
_OF_ALL = frozenset(
    {"fault", "kill", "start", "clearing", "cleared", "clear-failed", "cleaned", "nothing-to-clean"}
)


class Journal:
    """The events of one process, one JSON line each. They are in the page cache when `write`
    returns, so SIGKILL loses none.
    """

    def __init__(self, path: Path, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._who = who

    def write(self, do: str, **more: Any) -> None:
        os.write(
            self._file,
            json.dumps({"t": time.monotonic(), "who": self._who, "do": do, **more}).encode()
            + b"\n",
        )


def read(folder: Path) -> list[Event]:
    """All events of all processes in the order of time, without lines that a kill cut off."""
    return sorted(
        (event for path in folder.glob("*.jsonl") for event in _events(path)),
        key=lambda event: event["t"],
    )


def _events(path: Path) -> Iterator[Event]:
    for line in path.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


@dataclass(frozen=True)
class State:
    """The state of the stores at the end.

    `drained`: no message waits in RabbitMQ. `drops_marks`: a cleanup may have dropped rows with
    their marks.
    """

    live: frozenset[str]
    bare: frozenset[str]
    """The live mails whose content is missing."""
    marked: frozenset[str]
    dead_letters: tuple[str, ...]
    drained: bool
    drops_marks: bool


@dataclass
class Mail:
    """All events of one mail."""

    name: str
    events: list[Event] = field(default_factory=list)

    def first(self, do: str) -> Event | None:
        return next((event for event in self.events if event["do"] == do), None)

    def times(self, do: str) -> list[float]:
        return [event["t"] for event in self.events if event["do"] == do]

    @property
    def id(self) -> str | None:
        return next((event["id"] for event in self.events if "id" in event), None)


@dataclass(frozen=True)
class Finding:
    """A rule that a mail breaks, with the mail's story."""

    name: str
    what: str
    story: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}\n{self.story}"


@dataclass(frozen=True)
class Books:
    """The findings. `counts`: events by kind, because empty books balance, too."""

    findings: list[Finding]
    counts: dict[str, int]


def balance(events: list[Event], state: State) -> Books:
    """Checks every mail against every rule."""
    mails = _pages(events)
    erasers = [
        event
        for event in events
        if event["do"] in {"deleted", "delete-failed", "cleared", "clear-failed"}
    ]
    findings = [
        Finding(mail.name, what, story(mail, events, state))
        for mail in mails.values()
        for what in _wrong(mail, state, erasers)
    ]
    counts: dict[str, int] = defaultdict(int)
    for event in events:
        counts[event["do"]] += 1
    counts["dead letters"] = len(state.dead_letters)
    counts["live at the end"] = len(state.live)
    counts["drained"] = int(state.drained)
    counts["twice"] = sum(len(mail.times("handed")) > 1 for mail in mails.values())
    return Books(findings, dict(counts))


def _pages(events: Iterable[Event]) -> dict[str, Mail]:
    names = {event["id"]: event["name"] for event in events if "id" in event and "name" in event}
    mails: dict[str, Mail] = {}
    for event in events:
        name = event.get("name") or names.get(event.get("id", ""))
        if name is not None:
            mails.setdefault(name, Mail(name)).events.append(event)
    return mails


def _wrong(mail: Mail, state: State, erasers: list[Event]) -> Iterator[str]:
    asked, accepted = mail.first("asked"), mail.first("accepted")
    if asked is None:
        yield "handed out, and nobody ever enqueued it"
        return
    if any(not event["good"] for event in mail.events if event["do"] == "handed"):
        yield "handed out with content that is not its own"
    yield from _handed_too_late(mail, asked, accepted, erasers)
    if accepted is not None:
        yield from _unaccounted(mail, asked, state, erasers)


def _handed_too_late(
    mail: Mail, asked: Event, accepted: Event | None, erasers: list[Event]
) -> Iterator[str]:
    """I2: a deleted check that begins after a completion or deletion returned must see it."""
    last_check = max(
        (event["checked"] for event in mail.events if event["do"] == "handed"), default=0.0
    )
    if any(done < last_check for done in mail.times("completed")):
        yield "handed out by a delivery whose check began after its completion had returned"
    for eraser in erasers:
        promised = (
            eraser["do"] in {"deleted", "cleared"}
            and accepted is not None
            and accepted["t"] < eraser["began"]
        )
        if promised and _covers(eraser, asked) and eraser["t"] < last_check:
            yield f"handed out by a delivery whose check began after it was {eraser['do']}"


def _unaccounted(mail: Mail, asked: Event, state: State, erasers: list[Event]) -> Iterator[str]:
    """I1: an accepted mail is done, live, erased or a dead letter."""
    there = mail.id in state.live
    erased = any(_covers(eraser, asked) for eraser in erasers)
    done = bool(mail.times("completing")) and (
        mail.id in state.marked or state.drops_marks or bool(mail.times("completed"))
    )
    dead = mail.id in state.dead_letters
    if dead and not mail.times("rejecting") and not (state.drops_marks and (done or erased)):
        yield "a dead letter that nobody rejected"
    if there and mail.id in state.bare:
        yield "live, and its content is gone"
    if there and state.drained and not dead and mail.id not in state.marked:
        yield "live, and no message of it is left to deliver it"
    if not (there or erased or done or dead):
        yield "accepted and gone: not done, not live, not erased, no dead letter"


def _covers(eraser: Event, asked: Event) -> bool:
    """Whether the deletion may have erased the mail: it ended after the first enqueue began."""
    return bool(asked["t"] < eraser["t"] and eraser.get("sender") in {None, asked["sender"]})


def story(mail: Mail, events: list[Event], state: State) -> str:
    """The events of the mail, and the events around them, in the order of time."""
    begin, end = mail.events[0]["t"] - _AROUND, mail.events[-1]["t"] + _AROUND
    sender = next((event["sender"] for event in mail.events if "sender" in event), None)
    around = [
        event
        for event in events
        if begin <= event["t"] <= end
        and (event["do"] in _OF_ALL or ("sender" in event and event["sender"] == sender))
    ]
    told = sorted(
        {id(event): event for event in [*mail.events, *around]}.values(),
        key=lambda event: event["t"],
    )
    lines = [
        f"  {event['t'] - begin:8.3f} {event['who']:12} {event['do']:12} {_rest(event)}"
        for event in told
    ]
    now = [
        word
        for word, ids in (
            ("live", state.live),
            ("bare", state.bare),
            ("marked", state.marked),
            ("dead letter", state.dead_letters),
        )
        if mail.id in ids
    ]
    return "\n".join(
        [
            *lines,
            (
                f"  at the end: {', '.join(now) or 'nothing'} "
                f"(drained: {state.drained}, marks may be "
                f"dropped: {state.drops_marks})"
            ),
        ]
    )


def _rest(event: Event) -> str:
    return " ".join(
        f"{name}={value}" for name, value in event.items() if name not in {"t", "who", "do"}
    )
