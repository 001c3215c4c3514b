"""`mailslice postal quarantine release | discard --all`: what is passed over, and what failed."""

import io
import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from mailslice.cli import postal_quarantine as command
from mailslice.cli.main import run
from mailslice.duties.stuck_mails_postal import identity, quarantined, releases
from mailslice.duties.stuck_mails_postal.quarantined import QuarantineState
from mailslice.duties.stuck_mails_postal.releases import NotReleased, PostalSilent

FINISHED, SILENT = NotReleased("finished: Postal wrote"), PostalSilent("Postal cannot be asked: no")
GONE, LOST = NotReleased("message gone: Postal"), NotReleased("content lost: Postal dropped it")
REQUEUED, OTHER = NotReleased("requeued: Postal's queue"), NotReleased("unknown: no record of it")
STATES = {
    FINISHED: QuarantineState.FINISHED,
    REQUEUED: QuarantineState.REQUEUED,
    **dict.fromkeys((SILENT, OTHER), QuarantineState.UNKNOWN),
}


@pytest.fixture
def act(monkeypatch, capsys):
    """Runs the command on messages of which each is refused by an error, or None."""

    def act(*words, of):
        entries = [SimpleNamespace(server=1, message=number) for number, _ in enumerate(of)]

        class Ways:
            def release(self, entry):
                if (error := of[entry.message]) is not None:
                    raise error
                return 7

            discard = release

        @contextmanager
        def opened(*_):
            yield Ways()

        @contextmanager
        def stores():
            yield SimpleNamespace(postal=None, settings=None)

        looked_up = [
            SimpleNamespace(
                state=STATES.get(error, QuarantineState.KEPT),
                message=None if error in {GONE, SILENT} else "its row",
                is_proved=error is not OTHER,
                has_content=error not in {GONE, LOST, SILENT},
                queued=7 if error is REQUEUED else None,
            )
            for error in of
        ]
        monkeypatch.setattr(command, "open_stores", stores)
        monkeypatch.setattr(command, "record", lambda *_, **__: None)
        monkeypatch.setattr(quarantined, "in_quarantine", lambda _: entries)
        monkeypatch.setattr(identity, "existing_entries", lambda _: entries)
        monkeypatch.setattr(releases, "open_releases", opened)
        monkeypatch.setattr(quarantined, "look_up", lambda *_: looked_up)
        code = run(["postal", "quarantine", *words])
        return code, capsys.readouterr()

    return act


@pytest.mark.parametrize("doing", ["release", "discard"])
def test_with_all_what_is_not_kept_is_passed_over_and_what_could_not_be_asked_fails(act, doing):
    words = (doing, "--all", "--yes", "--json")
    code, said = act(*words, of=[None, FINISHED])
    assert code == 0
    results = [json.loads(line)["result"] for line in said.out.splitlines()]
    assert results == ["released" if doing == "release" else "discarded", "refused"]
    code, said = act(*words, of=[None, FINISHED, SILENT])
    assert code == 1
    assert "1 of 3 messages, such as: Postal cannot be asked: no" in said.err
    code, _ = act(doing, "--server", "1", "--message", "0", "--yes", of=[FINISHED])
    assert code == 1


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("release", "--all"), "Put 2 messages back"),
        (("release", "--all", "--accept-duplicates"), "Put 4 messages back"),
        (("discard", "--all"), "Remove 6 messages from the quarantine"),
        (("release", "--server", "1", "--message", "2"), "Put 1 messages back"),
    ],
)
def test_the_question_counts_what_is_acted_on(act, monkeypatch, words, asked):
    terminal = io.StringIO("n\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    code, said = act(*words, of=[None, None, FINISHED, SILENT, GONE, LOST, REQUEUED, OTHER])
    assert code == 3
    assert asked in said.err
