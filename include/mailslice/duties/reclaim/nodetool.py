"""Runs `nodetool` on a node by MAILSLICE_NODETOOL, without a shell.

{host} in the command stands for the node's address.
"""

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

VARIABLE = "MAILSLICE_NODETOOL"
HOST = "{host}"
_LAST_WORDS = 400


class CommandFailed(Exception):
    """With the end of its output. `timed_out`: abandoned, and the node may still run it."""

    def __init__(self, problem: str, *, timed_out: bool = False) -> None:
        super().__init__(problem)
        self.timed_out = timed_out


@dataclass(frozen=True, slots=True)
class Nodetool:
    """The command, split into words. Build it by `parse`."""

    words: tuple[str, ...]

    @classmethod
    def parse(cls, template: str) -> Self | None:
        """The command of the setting, which is checked already; None when that is empty."""
        words = tuple(shlex.split(template))
        return cls(words) if words else None

    @property
    def names_host(self) -> bool:
        """Whether it goes to the node that is meant: one without {host} always goes to the same."""
        return any(HOST in word for word in self.words)

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        return [*(word.replace(HOST, host) for word in self.words), *arguments]

    def run(self, host: str, arguments: Sequence[str], timeout: timedelta) -> None:
        """Run it and wait. Raises CommandFailed."""
        words, name = self.command(host, arguments), arguments[0]
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=timeout.total_seconds(),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            problem = f"{name} did not end within {timeout.total_seconds():.0f} s"
            raise CommandFailed(problem, timed_out=True) from error
        except OSError as error:
            problem = f"{VARIABLE}: {words[0]!r} cannot be started: {error.strerror or error}"
            raise CommandFailed(problem) from error
        if done.returncode:
            output = " ".join((done.stderr.strip() or done.stdout.strip()).split())[-_LAST_WORDS:]
            raise CommandFailed(
                f"{name} ended with {done.returncode}: {output or 'it said nothing'}"
            )


def flush(keyspace: str, tables: Sequence[str]) -> list[str]:
    """Arguments: memtables to disk. garbagecollect does not, and keeps what they shadow."""
    return ["flush", keyspace, *tables]


def collect(keyspace: str, tables: Sequence[str]) -> list[str]:
    """Arguments: rewrite SSTables without what newer ones delete, one of a table at a time."""
    return ["garbagecollect", "-g", "ROW", "-j", "1", keyspace, *tables]


def by_hand(keyspace: str, tables: Sequence[str]) -> str:
    """What a person types on each node, one after the other."""
    steps = (flush(keyspace, tables), collect(keyspace, tables))
    return " && ".join(f"nodetool {shlex.join(step)}" for step in steps)
