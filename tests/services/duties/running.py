"""Evaluates gates by plain Python, which takes a thousandth of Great Expectations' time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from mailslice.checks.expectations import Expectation, Frame
from mailslice.checks.gate import Evaluator, Finding, GateResult, evaluate

without_pages: Evaluator = partial(evaluate, with_pages=False)
"""Great Expectations, without Data Docs."""


def judged(name: str, frames: Sequence[Frame], docs: object, *more: Any) -> GateResult:
    """Evaluates a gate by Great Expectations only if it fails in plain Python: saves a second."""
    result = judged_plainly(name, frames, docs)
    if all(finding.success for finding in result.findings):
        return result
    return without_pages(name, frames, docs, *more)


def judged_plainly(name: str, frames: Sequence[Frame], docs: object, *_: object) -> GateResult:
    """An evaluator with the findings of Great Expectations; the tests of gates prove that."""
    return GateResult(name, tuple(one for frame in frames for one in _findings(frame)), "no pages")


def _findings(frame: Frame) -> Iterator[Finding]:
    rows = _rows(frame)
    if not rows and not frame.may_be_empty:
        yield Finding(frame.name, "There are rows to judge.", False, "rows", "0", 0, 0)
    for rule in frame.rules() if rows else ():
        values = [tuple(row[column] for column in rule.columns) for row in rows]
        if rule.kind == "ExpectTableRowCountToEqual":
            values = [(len(rows),)]
        unique = "Unique" in rule.kind
        broken = [
            each
            for each in values
            if (values.count(each) > 1 if unique else not _holds(rule, *each))
        ]
        column = ", ".join(rule.columns) or "rows"
        observed = ", ".join(map(str, (broken or values)[0]))
        if broken or rule in frame.expectations:
            yield Finding(
                frame.name, rule.sentence, not broken, column, observed, len(rows), len(broken)
            )


def _rows(frame: Frame) -> list[dict[str, Any]]:
    if isinstance(frame.rows, Sequence):
        return [dict(row) for row in frame.rows]
    if hasattr(frame.rows, "num_rows"):
        return frame.rows.to_pylist()
    return [row.asDict() for row in frame.rows.collect()]


def _holds(rule: Expectation, value: Any, other: Any = None) -> bool:
    if value is None:
        return False
    if rule.kind == "ExpectColumnValuesToBeBetween":
        low, high = rule.arguments["min_value"], rule.arguments["max_value"]
        return (low is None or value >= low) and (high is None or value <= high)
    if rule.kind == "ExpectColumnPairValuesToBeEqual":
        return bool(value == other)
    if rule.kind == "ExpectColumnValuesToBeInSet":
        return value in rule.arguments["value_set"]
    if rule.kind == "ExpectColumnValuesToNotBeNull":
        return True
    if rule.kind == "ExpectTableRowCountToEqual":
        return bool(value == rule.arguments["value"])
    raise NotImplementedError(rule.kind)
