"""Pictures of reports: SVG without any outside reference. The same numbers give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mailslice",
    "font.family": "sans-serif",
    "font.size": 9,
}


@contextmanager
def svg_axes(width: float, height: float) -> Iterator[tuple[Axes, io.BytesIO]]:
    """Axes, and a stream that has the picture once the context has ended. Sizes are in inches."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    picture = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        yield axes, picture
        FigureCanvasSVG(figure).print_svg(picture, metadata={"Date": None, "Creator": "mailslice"})


def say_empty(axes: Axes, text: str) -> None:
    """Write `text` into the middle of axes that have no data."""
    axes.text(0.5, 0.5, text, ha="center", va="center", color="#6b7683", transform=axes.transAxes)


def legend_above(axes: Axes, columns: int) -> None:
    """The legend in one line above the right end."""
    corner = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axes.legend(frameon=False, ncols=columns, **corner)
