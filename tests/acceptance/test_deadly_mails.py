"""A mail that kills its process, whatever way: it ends as a dead letter, and its neighbours are
delivered.
"""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from tests.acceptance.test_worker_run import World, until, world

__all__ = ["world"]

HANDLER = """
import ctypes, os, signal, sys, time

DEATHS = {
    "exit": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}

def handle(mail, content):
    with open("notes", "ab", buffering=0) as file:
        file.write(f"begun {mail.name} - {os.getpid()}\\n".encode())
    if b"Subject: 3\\r\\n" in content:
        DEATHS[os.environ["DEATH"]]()
    time.sleep(0.2)
    with open("notes", "ab", buffering=0) as file:
        file.write(f"done {mail.name} - {os.getpid()}\\n".encode())
"""


@pytest.mark.parametrize(
    "death",
    [*(pytest.param(one, marks=pytest.mark.soak) for one in ("exit", "segfault")), "killed"],
)
def test_a_mail_at_which_its_process_dies_three_times_is_a_dead_letter(
    world: World, death: str
) -> None:
    (world.folder / "deadly.py").write_text(HANDLER)
    began = time.monotonic()
    mails = world.enqueue(12)
    worker = world.worker(
        "--concurrency", "2", "--prefetch", "12", handler="deadly:handle", DEATH=death
    )
    until(lambda: len({note.name for note in world.notes("done")}) == 11, "the others", 180)
    until(lambda: world.cli("queue", "dead", world.queue), "a dead letter", 180)
    assert time.monotonic() - began < 180
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    (letter,) = world.cli("queue", "dead", world.queue)
    (deadly,) = set(mails) - {note.name for note in world.notes("done")}
    assert "its process died 3 times" in str(letter)
    begun = Counter(note.name for note in world.notes("begun"))
    assert begun.pop(deadly) == 3
    # One may have been in a handler beside it the first time; none of those that were only fetched
    # ahead began twice.
    assert sorted(begun.values()) in ([1] * 11, [1] * 10 + [2])
    assert world.size() == 1  # it is live: among the dead letters
