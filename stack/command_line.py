"""The real `mailslice` command as a child process, its JSON lines as they come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stack.program import CannotStart, past_proxies

SOME_FAILED = 1
"""Exit code of a command that listed what it could not do and did the rest."""


class CommandLine:
    """Runs `mailslice` with the settings of one stack and none of the caller's."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._program = str(Path(sys.executable).parent / "mailslice")
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith("MAILSLICE_")
        }
        self._environment = {**clean, **past_proxies(clean), **settings}

    def lines(self, *words: str) -> Iterator[dict[str, Any]]:
        """One dict a line of `--json`.

        Raises CannotStart with the command's own message when it ends with another code than 0 or
        1.
        """
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        command = [self._program, *words, "--json"]
        with subprocess.Popen(
            command, env=self._environment, stdout=pipe, stderr=pipe, stdin=nothing, text=True
        ) as process:
            if process.stdout is None or process.stderr is None:
                raise AssertionError("asked for pipes")
            yield from (json.loads(line) for line in process.stdout if line.strip())
            stderr = process.stderr.read().strip()
        if process.returncode not in (0, SOME_FAILED):
            raise CannotStart(
                f"`mailslice {' '.join(words)}` ended with {process.returncode}: {stderr[-400:]}"
            )

    def one(self, *words: str) -> dict[str, Any]:
        """The last object of `lines`."""
        rows = list(self.lines(*words))
        if not rows:
            raise CannotStart(f"`mailslice {' '.join(words)}` gave nothing")
        return rows[-1]

    def show(self, *words: str) -> int:
        """Runs the command for the person who looks on: its table goes straight to the terminal.

        Gives its exit code.
        """
        return subprocess.run(
            [self._program, *words], env=self._environment, stdin=subprocess.DEVNULL, check=False
        ).returncode
