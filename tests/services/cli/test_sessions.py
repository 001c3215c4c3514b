"""What docs/cli.md and docs/tutorial.md show is typed here, and answered as they say."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mailslice.cli.examples import examples_of
from mailslice.cli.examples import sessions as sessions_of_commands
from mailslice.model.settings import clone_root
from tests.acceptance.command import Cli, Inside
from tests.sessions import NOT_RUN, SLOW, is_answer, sessions

pytestmark = pytest.mark.new_keyspaces

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
REFUSED = {"mailslice queue size nowhere": 2}
"""Commands that show an error, and how they end."""


def typed(cli: Inside, command: str) -> str:
    """Stdout, then stderr, of a command line; of one that is not mailslice's by a shell."""
    if not command.startswith("mailslice "):
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        done = subprocess.run(
            ["bash", "-c", command],
            env={**cli.env, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout + done.stderr
    answer = cli(*shlex.split(command)[1:], code=REFUSED.get(command, 0))
    return answer.out.decode() + answer.err


def differences(cli: Inside, lines: list[tuple[str, str]]) -> str:
    """Every command whose answer is another than the page's, with its answer."""
    wrong = []
    for command, expected in lines:
        actual = typed(cli, command)
        if not is_answer(expected, actual):
            wrong.append(f"$ {command}\n{actual}")
    return "\n".join(wrong)


@pytest.mark.parametrize(
    "left_out", [(*NOT_RUN, *SLOW), pytest.param(NOT_RUN, marks=pytest.mark.soak)]
)
@pytest.mark.timeout(600)
def test_the_examples_of_commands_are_answered_as_shown(
    left_out: tuple[str, ...], fresh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outbox").mkdir()
    shutil.copy(SAMPLE / "01-plain.eml", tmp_path / "tide.eml")
    for name in ("02-two-recipients.eml", "03-multipart-alternative.eml"):
        shutil.copy(SAMPLE / name, tmp_path / "outbox")
    lines = [
        (example.command, example.answer)
        for command in sessions_of_commands()
        if command not in left_out
        for example in examples_of(command)
    ]
    assert differences(Cli(fresh.env).inside(), lines) == ""


@pytest.mark.timeout(600)
def test_the_tutorial_is_answered_as_shown(
    fresh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (clone_root() / "docs" / "tutorial.md").read_text(encoding="utf-8")
    lines = [(one.command, one.answer) for one in sessions(page)]
    assert len(lines) > 15
    cli = Cli({**fresh.env, "MAILSLICE_QUEUE_SLICE_WINDOW": "2s"}).inside()
    assert differences(cli, lines) == ""
