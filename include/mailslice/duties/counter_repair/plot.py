"""How far counters were off, and are, as a picture: mailboxes by drift."""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Iterable

FILE = "drifts.svg"
_EDGES = (-1001, -101, -11, -2, -1, 0, 1, 10, 100, 1000)
LABELS = (
    "< -1000",
    "-1000..",
    "-100..",
    "-10..",
    "-1",
    "0",
    "1",
    "..10",
    "..100",
    "..1000",
    "> 1000",
)
_BEFORE, _AFTER = "#d9822b", "#2f9e6e"


def histogram(drifts: Iterable[int]) -> list[int]:
    """How many drifts are in each column of LABELS. Stored less computed: negative is too little."""
    counts = [0] * len(LABELS)
    for drift in drifts:
        counts[bisect_left(_EDGES, drift)] += 1
    return counts


def drifts_svg(before: Iterable[int], after: Iterable[int], measured: str) -> bytes:
    """The picture of one run. The same drifts give the same bytes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    was, is_now = histogram(before), histogram(after)
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "mailslice",
            "font.family": "sans-serif",
            "font.size": 9,
        }
    ):
        figure = Figure(figsize=(12, 2.7), layout="constrained")
        axes = figure.add_subplot()
        at = range(len(LABELS))
        axes.bar(
            [each - 0.2 for each in at], was, color=_BEFORE, width=0.4, label=f"before {sum(was):,}"
        )
        axes.bar(
            [each + 0.2 for each in at],
            is_now,
            color=_AFTER,
            width=0.4,
            label=f"after {sum(is_now):,}",
        )
        if not any(was):
            axes.text(
                0.5,
                0.5,
                "no drift",
                ha="center",
                va="center",
                transform=axes.transAxes,
                color="#6b7683",
            )
            axes.set_yticks([])
        axes.set_xticks(list(at), LABELS)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylabel("mailboxes")
        axes.set_xlabel("messages that a mailbox shows too many (too few: negative)")
        axes.set_title(f"Drift of mailbox counters, {measured}", loc="left", fontsize=9)
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, frameon=False, ncols=2
        )
        picture = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(picture, metadata={"Date": None, "Creator": "mailslice"})
    return picture.getvalue()
