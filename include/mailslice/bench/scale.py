"""Computes docs/scale.md, what 100 million mails a day need, from the figures of `make bench`.

Cells whose figures were not measured show that; none is guessed. Times scale with rows and
executors, as the duties split their work by slice or token range. Numbers that follow from the
assumptions alone are text of the template; a test computes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
MAILS_A_DAY = 100_000_000
PEAK_RATE = 3 * MAILS_A_DAY / 86_400
"""Mails a second in the busiest minute: three times the mean."""
MAIL_BYTES = 50 * 1024
STORED_BLOBS, MESSAGES = 2_000_000_000, 1_000_000_000
"""Blobs of queue and mailboxes together, and messages in mailboxes."""
NIGHT = timedelta(hours=4)
_DUTIES = {
    "cleanup": (MAILS_A_DAY, ("plan_rows", "apply_rows")),
    "references": (STORED_BLOBS, ("references",)),
    "listing": (STORED_BLOBS, ("listed_blobs",)),
    "deletes": (STORED_BLOBS // 1000, ("deleted_keys",)),
    "counters": (MESSAGES, ("plan_again_messages",)),
}
"""Duty -> its items, and the measured figure (items a second) of each pass over them."""


def costs_of(measured: Sequence[Row], mail_bytes: int = MAIL_BYTES) -> Row:
    """Figures of a machine with two cores by their names in the JSON; unmeasured ones are absent.

    Takes the hot path at the size nearest to `mail_bytes`, and the largest run of each duty.
    """

    def best(bench: str, key: Callable[[Row], float]) -> Row:
        return max((row for row in measured if row["bench"] == bench), key=key, default={})

    return {
        **best("hotpath", lambda row: -abs(row["size"] - mail_bytes)),
        **best("view", lambda row: row["dead"]).get("cleanup", {}),
        **best("blob_gc", lambda row: row["blobs"]),
        **best("counters", lambda row: row["messages"]),
    }


def read_measured(file: Path) -> dict[str, Any]:
    """`{"date", "machine", "rows"}` that `make bench` wrote. Without a file there are no rows."""
    if not file.is_file():
        return {"date": None, "machine": None, "rows": []}
    measured: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return measured


def processes(rate: float, per_process: float | None) -> int | None:
    """How many processes reach the rate, if each does `per_process` a second."""
    return None if not per_process else -(-int(rate) // max(1, int(per_process)))


def hours(items: float, *rates: float | None) -> float | None:
    """Hours that one executor of two cores takes for all passes; None if a rate is unknown."""
    return sum(items / rate for rate in rates if rate) / 3600 if all(rates) else None


def executors(items: float, rates: Sequence[float | None], limit: timedelta) -> int | None:
    """The fewest executors of two cores that do all passes within the limit."""
    alone = hours(items, *rates)
    return None if alone is None else max(1, -(-int(3600 * alone) // int(limit.total_seconds())))


def _two_digits(number: float) -> int:
    """The number rounded down to two significant digits."""
    unit: int = 10 ** max(0, len(str(int(number))) - 2)
    return int(number) // unit * unit


def scale_page(measured: Mapping[str, Any]) -> str:
    """The generated part of the page: the template, filled from the measured figures."""
    costs = costs_of(measured["rows"])
    cpu = costs.get("cpu_seconds_per_1000")
    cells: dict[str, object] = {
        "enqueue": processes(PEAK_RATE, costs.get("enqueue_rate")),
        "dequeue": processes(PEAK_RATE, costs.get("dequeue_rate")),
        "cores": None if cpu is None else round(PEAK_RATE * cpu / 1000),
    }
    for duty, (items, figures) in _DUTIES.items():
        rates = [costs.get(f"{figure}_per_second") for figure in figures]
        alone = hours(items, *rates)
        count = executors(items, rates, NIGHT)
        most = None if alone is None else _two_digits(items * NIGHT.total_seconds() / 3600 / alone)
        cells[duty] = "- | - | -" if alone is None else f"{alone:,.1f} | {count:,} | {most:,}"
    template = (files("mailslice.bench") / "scale.md").read_text(encoding="utf-8")
    machine = f", {measured['machine']}" if measured["machine"] else ""
    return template.format(
        measured=f"{measured['date'] or 'nothing was measured yet'}{machine}",
        **{name: "-" if cell is None else cell for name, cell in cells.items()},
    )
