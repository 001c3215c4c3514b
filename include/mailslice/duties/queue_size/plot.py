"""The slices of a queue as a picture: live, dead and unproven rows over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mailslice.maintenance.plot import legend_above, say_empty, svg_axes

SLICES_PICTURE = "slices.svg"
_MAX_BARS = 120
_COLORS = {"live": "#2f9e6e", "dead": "#9aa5b1", "unproven": "#d9822b"}


def bars(slices: Sequence[dict[str, Any]], most: int = _MAX_BARS) -> list[tuple[Any, ...]]:
    """(start, live, dead, unproven) of at most `most` bars.

    Neighbouring slices are summed up when there are more. No row is dropped.
    """
    a_bar = max(1, -(-len(slices) // most))
    parts = [slices[at : at + a_bar] for at in range(0, len(slices), a_bar)]
    return [
        (part[0]["start"], *(sum(one[name] for one in part) for name in _COLORS)) for part in parts
    ]


def slices_svg(queue: str, measured: dict[str, Any]) -> bytes:
    """The picture of one measurement (`plan.json`); an empty queue has one, too."""
    shown = bars(measured["slices"])
    at, bottom = range(len(shown)), [0] * len(shown)
    with svg_axes(12, 2.7) as (axes, picture):
        for number, (name, color) in enumerate(_COLORS.items(), 1):
            if name == "unproven" and not measured[name]:
                continue
            rows = [bar[number] for bar in shown]
            label = f"{name} {measured[name]:,}"
            axes.bar(at, rows, bottom=bottom, color=color, label=label, width=0.85)
            bottom = [low + count for low, count in zip(bottom, rows, strict=True)]
        if not shown:
            say_empty(axes, "no rows")
            axes.set_yticks([])
        ticks = list(at)[:: max(1, len(shown) // 8)]
        starts = [datetime.fromisoformat(shown[tick][0]) for tick in ticks]
        axes.set_xticks(ticks, [f"{start:%b %d\n%H:%M:%S}" for start in starts])
        axes.set_ylabel("rows")
        # parse_math off: a queue's name may hold a dollar sign
        measured_at = datetime.fromisoformat(measured["measuredAt"])
        axes.set_title(
            f"{queue}: {len(measured['slices'])} slices with rows, "
            f"{measured_at:%Y-%m-%d %H:%M:%S} UTC",
            loc="left",
            fontsize=9,
            parse_math=False,
        )
        legend_above(axes, 3)
    return picture.getvalue()
