"""Runs `nodetool` on a node with the command of MAILSLICE_NODETOOL, without a shell.

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
_MAX_OUTPUT = 400


class CommandFailed(Exception):
    """A command failed; the message has the end of its output. `timed_out`: it may still run."""

    def __init__(self, problem: str, *, timed_out: bool = False) -> None:
        super().__init__(problem)
        self.timed_out = timed_out


@dataclass(frozen=True, slots=True)
class Nodetool:
    """The command of MAILSLICE_NODETOOL, split into words. Build it with `parse`."""

    words: tuple[str, ...]

    @classmethod
    def parse(cls, template: str) -> Self | None:
        """The command of the setting, which was validated before; None if it is empty."""
        words = tuple(shlex.split(template))
        return cls(words) if words else None

    @property
    def names_host(self) -> bool:
        """Whether the command has {host}. Without it every command goes to the same node."""
        return any(HOST in word for word in self.words)

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        return [*(word.replace(HOST, host) for word in self.words), *arguments]

    def run(self, host: str, arguments: Sequence[str], timeout: timedelta) -> None:
        """Run the command on `host` and wait. Raises CommandFailed."""
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
            output = " ".join((done.stderr.strip() or done.stdout.strip()).split())[-_MAX_OUTPUT:]
            raise CommandFailed(
                f"{name} ended with {done.returncode}: {output or 'it said nothing'}"
            )


def flush(keyspace: str, tables: Sequence[str]) -> list[str]:
    """Arguments that write memtables to disk: garbagecollect keeps rows that they delete."""
    return ["flush", keyspace, *tables]


def collect(keyspace: str, tables: Sequence[str]) -> list[str]:
    """Arguments that rewrite SSTables without rows that newer SSTables delete, one at a time."""
    return ["garbagecollect", "-g", "ROW", "-j", "1", keyspace, *tables]


def by_hand(keyspace: str, tables: Sequence[str]) -> str:
    """The commands that a person runs on each node, on one node after the other."""
    steps = (flush(keyspace, tables), collect(keyspace, tables))
    return " && ".join(f"nodetool {shlex.join(step)}" for step in steps)
