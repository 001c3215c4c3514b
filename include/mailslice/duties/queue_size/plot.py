"""The slices of a queue as a picture: live, dead and unproven rows over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mailslice.maintenance.plot import legend_above, say_empty, svg_axes

SLICES_PICTURE = "slices.svg"
_BARS = 120
_LIVE, _DEAD, _UNPROVEN = "#2f9e6e", "#9aa5b1", "#d9822b"


def bars(slices: Sequence[dict[str, Any]], most: int = _BARS) -> list[tuple[str, int, int, int]]:
    """(start, live, dead, unproven) of at most `most` bars.

    Neighbouring slices are summed up when there are more. No row is dropped.
    """
    a_bar = max(1, -(-len(slices) // most))
    parts = [slices[at : at + a_bar] for at in range(0, len(slices), a_bar)]
    return [
        (part[0]["start"], _sum(part, "live"), _sum(part, "dead"), _sum(part, "unproven"))
        for part in parts
    ]


def _sum(part: Sequence[dict[str, Any]], name: str) -> int:
    return sum(slice_json[name] for slice_json in part)


def slices_svg(queue: str, measured: dict[str, Any]) -> bytes:
    """The picture of one measurement (`plan.json`); an empty queue has one, too."""
    shown = bars(measured["slices"])
    at = range(len(shown))
    live, dead, unproven = (
        [bar[1] for bar in shown],
        [bar[2] for bar in shown],
        [bar[3] for bar in shown],
    )
    with svg_axes(12, 2.7) as (axes, picture):
        axes.bar(at, live, color=_LIVE, label=f"live {measured['live']:,}", width=0.85)
        axes.bar(at, dead, bottom=live, color=_DEAD, label=f"dead {measured['dead']:,}", width=0.85)
        if measured["unproven"]:
            axes.bar(
                at,
                unproven,
                bottom=[a + b for a, b in zip(live, dead, strict=True)],
                color=_UNPROVEN,
                label=f"unproven {measured['unproven']:,}",
            )
        if not shown:
            say_empty(axes, "no rows")
            axes.set_yticks([])
        ticks = list(at)[:: max(1, len(shown) // 8)]
        axes.set_xticks(
            ticks, [f"{datetime.fromisoformat(shown[tick][0]):%b %d\n%H:%M:%S}" for tick in ticks]
        )
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
