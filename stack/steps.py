"""Prints the progress of a command: one line a step, with its time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status


class Step:
    """A running step."""

    def __init__(self, name: str, status: Status) -> None:
        self._name = name
        self._status = status
        self.outcome = "done"

    def show(self, progress: str) -> None:
        """Shows progress on a terminal. The last text is the outcome of the finished step."""
        self.outcome = progress
        self._status.update(f"{self._name}: {progress}")


class Steps:
    """Prints steps on stdout, or on stderr, where stdout belongs to somebody else."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.console = Console(stderr=stderr, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Runs one step: a spinner on a terminal, and a line at its end."""
        start = time.monotonic()
        if not self.console.is_terminal:
            self.console.print(f"  … {name}", markup=False)
        with self.console.status(name) as status:
            step = Step(name, status)
            yield step
        self.console.print(
            f"  ✓ {name}: {step.outcome} ({time.monotonic() - start:.1f} s)", markup=False
        )
