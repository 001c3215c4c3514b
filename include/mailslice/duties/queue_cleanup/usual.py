"""What a cleanup of this queue usually deletes, by the ledger: one that wants far more has a person look first."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from mailslice.duties.queue_cleanup.params import Params
from mailslice.duty.context import StepContext
from mailslice.duty.ledger import Ledger
from mailslice.duty.report import DONE, NOTHING
from mailslice.duty.sliced import held_to_slices
from mailslice.quality.gate import Expectation, Frame

RUNS = 10
_LOOKED_AT = 50
FLOOR = 100_000
"""Rows that are never too many."""


@dataclass(frozen=True, slots=True)
class Usual:
    """`most` rows that a run may plan; None: there is no cap, because of `why`."""

    most: int | None
    why: str

    def frames(self, planned: int) -> list[Frame]:
        """What is expected of so many planned rows."""
        if self.most is None:
            return []
        text = f"At most {self.most} rows are to go: {self.why} (--most-usual and --reason go on)."
        expect = Expectation.between("planned", 0, self.most, text)
        return [Frame("usual", [{"planned": planned}], [expect])]

    def sentence(self) -> str:
        """For the step's summary."""
        return f"at most {self.most} rows: {self.why}" if self.most is not None else self.why


def usual_work(context: StepContext) -> Usual:
    """By the last runs that were done. Runs that are held to slices say nothing, and are not judged."""
    params = context.params(Params)
    if not params.most_usual:
        return Usual(None, f"no cap: most_usual is 0 ({params.reason})")
    if params.ranged:
        return Usual(None, "no cap: the run is held to a range of slices")
    reports = Ledger(context.stores, context.settings).list(
        context.request.duty, context.queue, _LOOKED_AT
    )
    planned = [
        int(each.get("planned", 0))
        for each in reports
        if each["run"] != context.request.run
        and each["status"] in {DONE, NOTHING}
        and not held_to_slices(each)
    ][:RUNS]
    if not planned:
        return Usual(None, "no cap: this is the first run that the ledger knows")
    middle = median(planned)
    return Usual(
        max(FLOOR, int(params.most_usual * middle)),
        f"{params.most_usual:g} times the median of the last {len(planned)} runs, {middle:g}, or {FLOOR}",
    )
