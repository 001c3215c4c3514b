"""The books of the random walk find what they are for: each rule broken once, by a few events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.walk.books import Books, Event, Journal, State, balance, read

NAME, ID, SENDER = "w-1", "id-1", "s@x.example"


def event(t: float, do: str, **more: Any) -> Event:
    about = (
        {}
        if do.startswith(("delet", "clear"))
        else {"name": NAME}
        if do in {"asked", "refused"}
        else {"id": ID}
    )
    if do in {"asked", "deleted", "delete-failed"}:
        about["sender"] = SENDER
    if do in {"accepted", "handed"}:
        about["name"] = NAME
    return {"t": t, "who": "p0-1", "do": do, **about, **more}


def handed(t: float, checked: float, *, good: bool = True) -> Event:
    return event(t, "handed", checked=checked, good=good)


ASKED = [event(1, "asked"), event(2, "accepted")]
DONE = [*ASKED, handed(3, 2.9), event(4, "completing"), event(5, "completed")]


def books(events: list[Event], **state: Any) -> Books:
    usual: dict[str, Any] = {
        "live": (),
        "bare": (),
        "marked": (),
        "dead_letters": (),
        "drained": True,
        "drops_marks": True,
    }
    given = {**usual, **state}
    sets = {name: frozenset(given[name]) for name in ("live", "bare", "marked")}
    return balance(events, State(**{**given, **sets}))


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (DONE, {"marked": [ID]}),
        (DONE, {}),
        (
            [*DONE, handed(6, 4.9)],
            {"marked": [ID]},
        ),  # its check had begun before the completion returned
        ([*ASKED, handed(3, 2.9), event(4, "completing")], {"marked": [ID]}),
        ([*ASKED, handed(3, 2.9), event(4, "rejecting")], {"dead_letters": (ID,), "live": [ID]}),
        ([*ASKED, event(4, "deleted", began=3)], {"marked": [ID]}),
        ([*ASKED, event(4, "delete-failed", began=3)], {}),
        (
            [
                *ASKED,
                event(1.5, "deleted", began=1.4),
                handed(4, 3.9),
                event(5, "completed", id=ID),
                event(5, "completing"),
            ],
            {},
        ),
        ([*ASKED, event(4, "cleared", began=3)], {}),
        ([*ASKED], {"live": [ID], "drained": False}),
        ([event(1, "asked")], {}),  # killed while it enqueued: nobody promised anything
        ([event(1, "asked"), event(2, "refused")], {}),
        ([event(1, "asked"), handed(3, 2)], {"live": [ID]}),
        ([*DONE], {"dead_letters": (ID,)}),  # cleaned, then handed out again: nobody handles it
    ],
)
def test_what_is_in_order_balances(events: list[Event], state: dict[str, Any]) -> None:
    assert books(events, **state).findings == []


@pytest.mark.parametrize(
    ("events", "state", "what"),
    [
        (ASKED, {}, "accepted and gone"),
        ([*ASKED, handed(3, 2.9)], {}, "accepted and gone"),
        (
            [*ASKED, handed(3, 2.9), event(4, "completing")],
            {"drops_marks": False},
            "accepted and gone",
        ),
        ([*ASKED, event(0.9, "cleared", began=0.5)], {}, "accepted and gone"),
        ([*ASKED, event(4, "deleted", began=3, sender="another@x")], {}, "accepted and gone"),
        ([*DONE, handed(7, 5.1)], {"marked": [ID]}, "after its completion had returned"),
        (
            [*ASKED, event(4, "deleted", began=3), handed(6, 4.1), *DONE[3:]],
            {"marked": [ID]},
            "after it was deleted",
        ),
        (
            [*ASKED, event(4, "cleared", began=3), handed(6, 4.1), *DONE[3:]],
            {"marked": [ID]},
            "after it was cleared",
        ),
        ([*ASKED, handed(3, 2.9, good=False), *DONE[3:]], {}, "content that is not its own"),
        ([handed(3, 2.9)], {}, "nobody ever enqueued it"),
        (ASKED, {"live": [ID], "bare": [ID], "drained": False}, "its content is gone"),
        (ASKED, {"live": [ID]}, "no message of it is left"),
        (ASKED, {"live": [ID], "dead_letters": (ID,)}, "a dead letter that nobody rejected"),
        (DONE, {"dead_letters": (ID,), "drops_marks": False}, "a dead letter that nobody rejected"),
    ],
)
def test_what_is_wrong_is_found_with_its_story(
    events: list[Event], state: dict[str, Any], what: str
) -> None:
    (finding,) = books(events, **state).findings
    assert what in finding.what
    assert all(
        each["do"] in finding.story for each in events if each.get("sender", SENDER) == SENDER
    )
    assert "at the end:" in finding.story


def test_a_story_has_the_faults_around_it_and_nothing_of_other_times() -> None:
    around = [
        {"t": 2.5, "who": "driver", "do": "fault", "what": "s3 cut"},
        {"t": 9, "who": "driver", "do": "kill", "what": "c1"},
    ]
    (finding,) = books([*ASKED, *around]).findings
    assert "s3 cut" in finding.story
    assert "kill" not in finding.story


def test_journals_of_all_processes_come_together_in_order_without_a_line_that_was_cut(
    tmp_path: Path,
) -> None:
    first, second = Journal(tmp_path / "a.jsonl", "a"), Journal(tmp_path / "b.jsonl", "b")
    first.write("asked", name="1")
    second.write("asked", name="2")
    first.write("accepted", name="1", id="x")
    with (tmp_path / "b.jsonl").open("ab") as file:
        file.write(b'{"t": 1, "wh')
    assert [(each["who"], each["do"]) for each in read(tmp_path)] == [
        ("a", "asked"),
        ("b", "asked"),
        ("a", "accepted"),
    ]
