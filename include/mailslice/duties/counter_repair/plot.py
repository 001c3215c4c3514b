"""How far counters were off, and are, as a picture: mailboxes by drift."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from mailslice.maintenance.plot import legend_above, say_empty, svg_axes

DRIFTS_PICTURE = "drifts.svg"
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
    """Drifts in each column of LABELS. Stored less computed: a negative one is too little."""
    counts = [0] * len(LABELS)
    for drift in drifts:
        counts[bisect_left(_EDGES, drift)] += 1
    return counts


def drifts_svg(before: Iterable[int], after: Iterable[int], measured: str) -> bytes:
    was, is_now = histogram(before), histogram(after)
    at = range(len(LABELS))
    with svg_axes(12, 2.7) as (axes, picture):
        for shift, counts, color, name in (
            (-0.2, was, _BEFORE, "before"),
            (0.2, is_now, _AFTER, "after"),
        ):
            label = f"{name} {sum(counts):,}"
            axes.bar([x + shift for x in at], counts, color=color, width=0.4, label=label)
        if not any(was):
            say_empty(axes, "no drift")
            axes.set_yticks([])
        axes.set_xticks(list(at), LABELS)
        axes.set_ylabel("mailboxes")
        axes.set_xlabel("messages that a mailbox shows too many (too few: negative)")
        axes.set_title(f"Drift of mailbox counters, {measured}", loc="left", fontsize=9)
        legend_above(axes, 2)
    return picture.getvalue()
