"""The command line as a user has it: `.venv/bin/mailslice` by its path, from another folder, with
only MAILSLICE_* variables.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

MAILSLICE = Path(sys.executable).with_name("mailslice")


@dataclass(frozen=True)
class Answer:
    """The output of a command."""

    out: bytes
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Stdout as JSON lines. Raises if a line is not JSON."""
        return [json.loads(line) for line in self.out.decode("ascii").splitlines()]

    @property
    def one(self) -> dict[str, Any]:
        """The only JSON line of stdout."""
        [line] = self.lines
        return line


@dataclass(frozen=True)
class Cli:
    """Runs commands with an environment of MAILSLICE_* variables only."""

    env: Mapping[str, str]
    program: tuple[str, ...] = (str(MAILSLICE),)

    def __call__(
        self, *words: object, code: int = 0, stdin: bytes | None = None, timeout: float = 120
    ) -> Answer:
        done = subprocess.run(
            [*self.program, *map(str, words)],
            env=dict(self.env),
            input=b"" if stdin is None else stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
            cwd="/",
        )
        assert done.returncode == code, (
            f"{words}: exit {done.returncode}, not {code}\n"
            f"{done.stdout.decode(errors='replace')}\n{done.stderr.decode(errors='replace')}"
        )
        return Answer(done.stdout, done.stderr.decode())

    def json(
        self, *words: object, code: int = 0, stdin: bytes | None = None, timeout: float = 120
    ) -> list[dict[str, Any]]:
        """Runs a command; returns the JSON lines of its stdout."""
        return self(*words, "--json", code=code, stdin=stdin, timeout=timeout).lines

    def but(self, **changes: str) -> Self:
        """A copy with other settings."""
        return replace(self, env={**self.env, **changes})

    def inside(self) -> Inside:
        """A copy that runs commands in this process, which saves a second each. For tests of the
        answers of commands rather than of their start.
        """
        return Inside(self.env)

    def start(self, *words: object, stdin: int | None = None) -> subprocess.Popen[bytes]:
        """Starts a command that runs beside the test."""
        return subprocess.Popen(
            [*self.program, *map(str, words)],
            env=dict(self.env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            bufsize=0,
        )


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Inside(Cli):
    """Runs commands in this process, each with its own standard streams and environment.

    `spool`: the real queue for the name `spool`, in arguments and output: tests of a module share
    stores, but each has its own queue.
    """

    spool: str = "spool"
    terminal: bool = False
    """Whether stdin is a terminal, where commands ask for confirmation."""

    def own_queue(self) -> Inside:
        """A copy with a queue that nobody else uses."""
        cli = replace(self, spool=f"spool-{uuid.uuid4().hex}")
        cli("queue", "create", "spool")
        return cli

    def __call__(
        self, *words: object, code: int = 0, stdin: bytes | None = None, timeout: float = 120
    ) -> Answer:
        from mailslice.cli.main import run

        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        given = io.BytesIO(stdin or b"")
        kept = sys.stdin, sys.stdout, sys.stderr, dict(os.environ)
        try:
            sys.stdin = _Terminal(given) if self.terminal else io.TextIOWrapper(given)
            sys.stdout, sys.stderr = out, err
            os.environ.clear()
            os.environ.update(self.env)
            ended = run([self.spool if word == "spool" else str(word) for word in words])
        finally:
            sys.stdin, sys.stdout, sys.stderr = kept[:3]
            os.environ.clear()
            os.environ.update(kept[3])
        out.flush()
        answer = Answer(
            out.buffer.getvalue().replace(self.spool.encode(), b"spool"),
            err.getvalue().replace(self.spool, "spool"),
        )
        assert ended == code, (
            f"{words}: exit {ended}, not "
            f"{code}\n{answer.out.decode(errors='replace')}\n{answer.err}"
        )
        return answer
