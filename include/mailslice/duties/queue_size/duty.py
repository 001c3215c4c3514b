"""The duty: measure a queue; publish JSON, Prometheus text, a picture, the broker's sample."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.queue_size.measurement import take
from mailslice.duties.queue_size.metrics import samples
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.duty import ReportDuty
from mailslice.maintenance.gates import Reads
from mailslice.maintenance.metrics import exposition, queue_file, value_in
from mailslice.maintenance.plan import QueuePlan
from mailslice.maintenance.plot import legend_above, say_empty, svg_axes
from mailslice.maintenance.report import DONE, DRY_RUN
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.run import Run
from mailslice.model.slices import slice_start
from mailslice.stores.cassandra.own import QueueSample

_SLICES = 500
"""Slices that a report lists one by one. A report is made every 15 min and kept for months."""
_SUMMED = ("live", "dead", "survivors", "unproven")
SLICES_PICTURE = "slices.svg"
_MAX_BARS = 120
_COLORS = {"live": "#2f9e6e", "dead": "#9aa5b1", "unproven": "#d9822b"}


class MeasurementPlan(QueuePlan):
    """The result of `measurement.take`."""

    measured: dict[str, Any]

    @property
    def planned(self) -> int:
        return 0


class QueueSize(ReportDuty[MeasurementPlan]):
    """Publishes a measurement, unless its check fails."""

    plan_type = MeasurementPlan
    bulky = frozenset({"digests"})

    def plan(self, run: Run) -> MeasurementPlan:
        """The plan's digest covers the whole measurement: a report names exactly that one."""
        measured = take(run)
        size = f"{measured['live']} live, {measured['dead']} dead rows"
        run.report(message="; ".join([size, *measured["advice"]]))
        made_at = datetime.fromisoformat(measured["measuredAt"])
        return MeasurementPlan(
            run=run.request.run, queue=run.queue, made_at=made_at, measured=measured
        )

    def check(self, run: Run, plan: MeasurementPlan) -> Iterable[Frame]:
        del run
        reads = plan.measured["reads"]
        counts = Reads(reads["wanted"], reads["read"], reads["twice"])
        yield Frame.facts("totals", **counts.facts("slices_read", "slice"))
        yield slices(plan.measured)

    def publish(self, run: Run, plan: MeasurementPlan) -> None:
        """Writes metrics, picture and sample. Touches no mail and none of James' tables."""
        measured, location = plan.measured, run.folder.artifacts
        files = {
            "metrics": (file_of(run.queue), exposition(samples(run.queue, measured))),
            "plot": (run.folder.file(SLICES_PICTURE), slices_svg(run.queue, measured)),
        }
        for name, (file, data) in files.items():
            if name != "metrics" or not _later_is_published(run, plan):
                location.write(file, data)
            run.report(**{name: location.uri(file)})
        run.report(digests={name: _digest(data) for name, (_, data) in files.items()})
        if measured["passes"]:
            first, second = map(datetime.fromisoformat, measured["passes"])
            run.stores.own.queue_samples.save(run.queue, QueueSample(first, second))

    def verify(self, run: Run, plan: MeasurementPlan, result: Result) -> Iterable[Frame]:
        """Reads back what was published, as its readers will."""
        location = run.folder.artifacts
        text = location.read(file_of(run.queue)) or b""
        picture = location.read(run.folder.file(SLICES_PICTURE)) or b""
        size, drawn = plan.measured["size"], result.fields["digests"]["plot"]
        size_read = size if _later_is_published(run, plan) else size_in(text, run.queue)
        published = "The metrics file says the size that was measured, or is of a later run."
        same = "The picture is the one that was drawn."
        remembered = (
            "A broker that was seen empty is remembered as such, at that moment or a later one."
        )
        yield Frame.facts(
            "published",
            size_published=(size_read, size, size, published),
            picture_differs=(int(_digest(picture) != drawn), 0, 0, same),
            sample_lost=(int(_sample_lost(run, plan.measured["passes"])), 0, 0, remembered),
        )

    def outcome(self, run: Run, steps: Summaries) -> tuple[str, str]:
        """The message is the same whether the measurement was published or not."""
        return DRY_RUN if run.duty_params.dry_run else DONE, self.describe(steps)

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """The measurement, with the newest slices in full and older ones summed up."""
        measured: Mapping[str, Any] = steps.plan.get("decided", {}).get("measured", {})
        fields = {k: value for k, value in measured.items() if k not in {"passes", "reads"}}
        if measured:
            older, fields["slices"] = measured["slices"][:-_SLICES], measured["slices"][-_SLICES:]
            sums = {name: sum(row[name] for row in older) for name in _SUMMED}
            fields["olderSlices"] = {"count": len(older), **sums}
        return fields | {"published": steps.applied is not None}


DUTY = QueueSize()


def slices(measured: Mapping[str, Any]) -> Frame:
    """One row a slice that has rows."""
    window = timedelta(seconds=measured["window"])
    starts = [datetime.fromisoformat(row["start"]) for row in measured["slices"]]
    rows = [
        {"start": iso(start), "off_seconds": (start - slice_start(start, window)).total_seconds()}
        for start in starts
    ]
    sentence = "Every slice starts at a multiple of the slice window."
    return Frame("slices", rows, [Expectation.equal("off_seconds", 0, sentence)], may_be_empty=True)


def file_of(queue: str) -> str:
    """The metrics file: never one of `queue_audit` or `stuck_mails_postal`, for any queue name."""
    file = queue_file("mailslice", queue)
    return file.replace("s/mailslice-audit-", "s/mailslice-audit%2D").replace(
        "s/mailslice-postal.", "s/mailslice-%70ostal."
    )


def size_in(text: bytes, queue: str) -> float:
    """The size that a metrics file gives for the queue; -1 without one."""
    return value_in(text, "mailslice_queue_size", queue, -1.0)


def _later_is_published(run: Run, plan: MeasurementPlan) -> bool:
    """Whether the metrics file is of an overlapping run that measured later."""
    text = run.folder.artifacts.read(file_of(run.queue)) or b""
    made_at, now = plan.made_at.timestamp(), run.clock().timestamp()
    metric = "mailslice_queue_measured_timestamp_seconds"
    return made_at < value_in(text, metric, run.queue, made_at) <= now


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sample_lost(run: Run, passes: list[str] | None) -> bool:
    """Whether the broker was seen empty and the store has no such sample; its times are in ms."""
    if not passes:
        return False
    sample, first = run.stores.own.queue_samples.get(run.queue), datetime.fromisoformat(passes[0])
    return sample is None or sample.first_pass + timedelta(milliseconds=1) <= first


def bars(slices: Sequence[dict[str, Any]], limit: int = _MAX_BARS) -> list[tuple[Any, ...]]:
    """(start, live, dead, unproven) of at most `limit` bars, which sum up neighbouring slices."""
    a_bar = max(1, -(-len(slices) // limit))
    parts = [slices[at : at + a_bar] for at in range(0, len(slices), a_bar)]
    return [
        (part[0]["start"], *(sum(row[name] for row in part) for name in _COLORS)) for part in parts
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
