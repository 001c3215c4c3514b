"""Draws the time of each duty by its number of rows. A line of slope 1 is linear growth."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Curves = dict[str, list[tuple[int, float]]]


def curves_of(rows: Sequence[Row]) -> Curves:
    """Step -> its points (rows, seconds), fewest rows first. Unmeasured steps are absent."""
    curves: Curves = {}

    def add(name: str, count: int | None, rate: float | None) -> None:
        if count and rate:
            curves.setdefault(name, []).append((count, count / rate))

    for row in rows:
        cleanup = row.get("cleanup") or {}
        for step in ("plan", "apply"):
            rate = cleanup.get(f"{step}_rows_per_second")
            add(f"queue_cleanup {step}", cleanup.get("rows"), rate)
        if row["bench"] == "counters" and row["messages"] > row["mailboxes"]:
            add("counter_repair plan", row["messages"], row["plan_again_messages_per_second"])
        elif row["bench"] == "blob_gc" and not row["keep"]:
            add("blob_gc references", row["references"], row["references_per_second"])
            add("blob_gc deletes", row["orphans"], row["deleted_keys_per_second"])
    return {name: sorted(points) for name, points in curves.items()}


def curves_svg(rows: Sequence[Row]) -> bytes:
    """The picture as SVG. Both axes are logarithmic."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": "mailslice", "font.size": 9}
    with mpl.rc_context({**style, "font.family": "sans-serif"}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for name, points in curves_of(rows).items():
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set(xscale="log", yscale="log")
        axes.set(xlabel="rows (of deletes: keys)", ylabel="seconds")
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False)
        picture = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(picture, metadata={"Date": None, "Creator": "mailslice"})
    return picture.getvalue()
