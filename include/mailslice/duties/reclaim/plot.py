"""The disk of each node before and after, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mailslice.maintenance.plot import say_empty, svg_axes

DISK_PICTURE = "disk.svg"
_BEFORE, _AFTER = "#9aa5b1", "#2f9e6e"
_MAX_BARS = 40


def bars(nodes: Sequence[dict[str, Any]]) -> list[tuple[str, int, int | None]]:
    """(node and table, MiB before, MiB after or None) of the largest tables that are not empty."""
    rows = []
    for node in nodes:
        before = node["before"] or node["mib"] or {}
        after = node["after"] or {}
        rows += [
            (f"{node['node']} {table}", size, after.get(table))
            for table, size in before.items()
            if size or after.get(table)
        ]
    return sorted(rows, key=lambda bar: -bar[1])[:_MAX_BARS]


def nodes_svg(nodes: Sequence[dict[str, Any]]) -> bytes:
    """The picture of one run (`nodes` of its report)."""
    shown = bars(nodes)
    at = range(len(shown))
    with svg_axes(9, 1.2 + 0.45 * max(1, len(shown))) as (axes, picture):
        for shift, sizes, color, label in (
            (0.2, [before for _, before, _ in shown], _BEFORE, "before"),
            (-0.2, [after or 0 for _, _, after in shown], _AFTER, "after"),
        ):
            axes.barh([y + shift for y in at], sizes, height=0.36, color=color, label=label)
        axes.set_yticks(list(at), [bar[0] for bar in shown])
        if not shown:
            say_empty(axes, "nothing on disk")
        axes.set_xlabel("MiB")
        axes.legend(loc="lower right", frameon=False)
    return picture.getvalue()
