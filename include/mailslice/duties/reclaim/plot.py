"""The disk of each node before and after, as a picture. SVG, without any outside reference."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

FILE = "disk.svg"
_BEFORE, _AFTER = "#9aa5b1", "#2f9e6e"
_MOST = 40


def bars(nodes: Sequence[dict[str, Any]]) -> list[tuple[str, int, int | None]]:
    """(node and table, MiB before, MiB after or None) of each table that is not empty; of the largest when there are more than fit."""
    found = []
    for node in nodes:
        before = node["before"] or node["mib"] or {}
        after = node["after"] or {}
        found += [
            (f"{node['node']} {table}", size, after.get(table))
            for table, size in before.items()
            if size or after.get(table)
        ]
    return sorted(found, key=lambda each: -each[1])[:_MOST]


def nodes_svg(nodes: Sequence[dict[str, Any]]) -> bytes:
    """The picture of one run (`nodes` of its report). The same report gives the same bytes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    shown = bars(nodes)
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "mailslice",
            "font.family": "sans-serif",
            "font.size": 9,
        }
    ):
        figure = Figure(figsize=(9, 1.2 + 0.45 * max(1, len(shown))), layout="constrained")
        axes = figure.add_subplot()
        at = range(len(shown))
        axes.barh(
            [y + 0.2 for y in at],
            [each[1] for each in shown],
            height=0.36,
            color=_BEFORE,
            label="before",
        )
        axes.barh(
            [y - 0.2 for y in at],
            [each[2] or 0 for each in shown],
            height=0.36,
            color=_AFTER,
            label="after",
        )
        axes.set_yticks(list(at), [each[0] for each in shown])
        if not shown:
            axes.text(
                0.5,
                0.5,
                "nothing on disk",
                ha="center",
                va="center",
                transform=axes.transAxes,
                color="#6b7683",
            )
        axes.set_xlabel("MiB")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right", frameon=False)
        picture = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(picture, metadata={"Date": None, "Creator": "mailslice"})
    return picture.getvalue()
