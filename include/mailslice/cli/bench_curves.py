"""What each duty costs by the rows it works on, as a picture: seconds over rows, both logarithmic; a straight line of slope 1 is linear."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Curves = dict[str, list[tuple[int, float]]]


def curves_of(views: Sequence[Row], duties: Sequence[Row]) -> Curves:
    """Points (rows, seconds) of each step, fewest rows first; what was not measured is left out."""
    found: Curves = {}
    for view in views:
        cleanup = view.get("cleanup") or {}
        for step in ("plan", "apply"):
            _add(
                found,
                f"queue_cleanup {step}",
                cleanup.get("rows"),
                cleanup.get(f"{step}_rows_per_second"),
            )
    for row in duties:
        if row["bench"] == "counters" and row["messages"] > row["mailboxes"]:
            _add(
                found, "counter_repair plan", row["messages"], row["plan_again_messages_per_second"]
            )
        elif row["bench"] == "blob_gc" and not row["keep"]:
            _add(found, "blob_gc references", row["references"], row["references_per_second"])
            _add(found, "blob_gc deletes", row["orphans"], row["deleted_keys_per_second"])
    return {name: sorted(points) for name, points in found.items()}


def _add(curves: Curves, name: str, rows: int | None, rate: float | None) -> None:
    if rows and rate:
        curves.setdefault(name, []).append((rows, rows / rate))


def curves_svg(views: Sequence[Row], duties: Sequence[Row]) -> bytes:
    """The picture."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "mailslice",
            "font.family": "sans-serif",
            "font.size": 9,
        }
    ):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for name, points in curves_of(views, duties).items():
            axes.plot(
                [rows for rows, _ in points],
                [seconds for _, seconds in points],
                marker="o",
                label=name,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("rows (of deletes: keys)")
        axes.set_ylabel("seconds")
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False)
        picture = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(picture, metadata={"Date": None, "Creator": "mailslice"})
    return picture.getvalue()
