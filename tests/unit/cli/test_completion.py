"""Shell completion, as the shells ask for it."""

import subprocess
import sys
from pathlib import Path

import pytest

MAILSLICE = Path(sys.executable).with_name("mailslice")


def ask(*words, **environ):
    """What the command prints with these variables and nothing else of the caller's."""
    done = subprocess.run(
        [str(MAILSLICE), *words],
        env={"PATH": f"{MAILSLICE.parent}:/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_bash_completes_groups_commands_and_options():
    script = ask(_MAILSLICE_COMPLETE="source_bash")
    completed = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{COMPLETE}"],
        env={"PATH": f"{MAILSLICE.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.splitlines() == [
        "queue",
        "browse",
        "--older-than",
        "dead_letters",
    ]


COMPLETE = """
try() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _mailslice_completion mailslice
  printf '%s\\n' "${COMPREPLY[@]}"
}
try mailslice qu
try mailslice queue br
try mailslice queue browse --old
try mailslice duty run dea
"""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_get_a_script_and_answers(shell):
    assert f"complete_{shell}" in ask(_MAILSLICE_COMPLETE=f"source_{shell}")
    answer = ask(
        _MAILSLICE_COMPLETE=f"complete_{shell}",
        _TYPER_COMPLETE_ARGS="mailslice queue br",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert "browse" in answer
    assert "slices" not in answer


def test_it_is_installed_for_the_shell_that_asks(tmp_path):
    subprocess.run(
        # Two commands: bash would become the only one, and no shell would ask.
        ["bash", "--norc", "-c", "mailslice --install-completion && true"],
        env={"PATH": f"{MAILSLICE.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    [line] = [
        line for line in (tmp_path / ".bashrc").read_text().splitlines() if "mailslice" in line
    ]
    script = Path(line.strip().removeprefix("source ").strip("'"))
    assert "_MAILSLICE_COMPLETE=complete_bash" in script.read_text()
