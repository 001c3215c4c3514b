"""Progress of an apply, saved in the run's folder for the report and for a second try."""

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from mailslice.maintenance.plan import Plan
from mailslice.maintenance.result import PROGRESS, Result
from mailslice.maintenance.run import Run

SAVE_EVERY, MAX_NAMED_FAILURES = 100, 100
_REST = 20.0
"""After a save, the next one waits for so many times as long as it took: lists of items grow."""


class Progress:
    """Counts outcomes of planned items. Saved at the start, about every 100 items, at the end."""

    def __init__(self, run: Run, plan: Plan, kinds: tuple[str, ...] = ()) -> None:
        self.applied = self.failed = 0
        self.skipped: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.kinds: Counter[str] = Counter(dict.fromkeys(kinds, 0))
        self.counted: dict[str, Any] = {}
        """Report fields that belong to the counts: kept with those of an earlier try."""
        self._run, self._plan = run, plan
        self._unsaved, self._next_save = 0, 0.0
        saved = run.folder.read_json(PROGRESS) or {}
        self.earlier: Mapping[str, Any] = saved if saved.get("planDigest") == plan.digest else {}
        """What an earlier try of this plan saved (as in applied.json); empty in a first try.

        Its counts are not added: the duty determines each outcome again. They stay in the file
        until this try has as many. Its report fields are set again, until the duty replaces them.
        """
        self._earlier = Result.from_json(self.earlier, kinds)
        run.report(**self._earlier.fields)

    def done(self, kind: str | None = None, count: int = 1) -> None:
        """Count applied items; `kind` is one of the duty's `kinds`."""
        self.applied += count
        if kind is not None:
            self.kinds[kind] += count
        self._counted(count)

    def skip(self, reason: str, count: int = 1) -> None:
        """Count items that were left alone because something changed since the plan."""
        if count:
            self.skipped[reason] += count
            self._counted(count)

    def fail(self, item: str, why: str, count: int = 1) -> None:
        """Count items that an error kept from being done. The first hundred are named."""
        self.failed += count
        if len(self.failures) < MAX_NAMED_FAILURES:
            self.failures[item] = why
        self._counted(count)

    def result(self) -> Result:
        """The counts so far. Items that are neither applied, skipped nor failed remain."""
        planned = self._plan.planned
        remaining = planned - self.applied - self.failed - self.skipped.total()
        return Result(
            self._plan.digest,
            planned,
            self.applied,
            dict(self.skipped),
            self.failed,
            dict(self.failures),
            remaining,
            dict(self.kinds),
            {**self._run.fields, **self.counted},
        )

    def save(self, *, at_end: bool = False) -> None:
        """Write progress.json: the counts, and the fields of `run.report`.

        Until `at_end` the counts of an earlier try that got further stay.
        """
        began, result = time.monotonic(), self.result()
        if not at_end and result.reached < self._earlier.reached:
            result = replace(self._earlier, fields=dict(self._run.fields))
        self._run.folder.write_json(PROGRESS, result.as_json())
        self._unsaved, ended = 0, time.monotonic()
        self._next_save = ended + _REST * (ended - began)

    def __enter__(self) -> Self:
        # Written before the first change: by it a second try knows that items may be gone by the
        # first one's work. A second try saves nothing here: it keeps the file of the first.
        if not self.earlier:
            self.save()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.save(at_end=True)
        else:
            with suppress(Exception):  # the error that ends the step matters more
                self.save()

    def _counted(self, count: int) -> None:
        self._unsaved += count
        if self._unsaved >= SAVE_EVERY and time.monotonic() >= self._next_save:
            self.save()
