"""Expectations that a person can read: each has a sentence, which the gate's message and Data Docs show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Expectation:
    """One rule over one column of a small frame. `kind` is the class name in great_expectations.expectations, `arguments` are its own."""

    column: str
    sentence: str
    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def equal(cls, column: str, value: float, sentence: str) -> Self:
        """Every value of the column is this number."""
        return cls.between(column, value, value, sentence)

    @classmethod
    def between(cls, column: str, low: float | None, high: float | None, sentence: str) -> Self:
        """Every value is a number from `low` to `high`, both included; None leaves a side open."""
        return cls(
            column,
            sentence,
            "ExpectColumnValuesToBeBetween",
            {"column": column, "min_value": low, "max_value": high},
        )

    @classmethod
    def one_of(cls, column: str, values: Sequence[object], sentence: str) -> Self:
        """Every value is one of these."""
        return cls(
            column,
            sentence,
            "ExpectColumnValuesToBeInSet",
            {"column": column, "value_set": list(values)},
        )

    @classmethod
    def unique(cls, column: str, sentence: str) -> Self:
        """No value occurs twice."""
        return cls(column, sentence, "ExpectColumnValuesToBeUnique", {"column": column})

    @classmethod
    def present(cls, column: str, sentence: str) -> Self:
        """No value is missing."""
        return cls(column, sentence, "ExpectColumnValuesToNotBeNull", {"column": column})

    @classmethod
    def same(cls, column: str, other: str, sentence: str) -> Self:
        """In every row both columns are equal."""
        return cls(
            column,
            sentence,
            "ExpectColumnPairValuesToBeEqual",
            {"column_A": column, "column_B": other},
        )

    @classmethod
    def at_least_column(cls, larger: str, smaller: str, sentence: str) -> Self:
        """In every row `larger` is not less than `smaller`; rows where either is missing are left out."""
        arguments = {
            "column_A": larger,
            "column_B": smaller,
            "or_equal": True,
            "ignore_row_if": "either_value_is_missing",
        }
        return cls(larger, sentence, "ExpectColumnPairValuesAToBeGreaterThanB", arguments)


@dataclass(frozen=True, slots=True)
class Frame:
    """A small table and what is expected of it. Without rows nothing is looked at. Never put addresses in: values of failing rows are shown."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    expectations: Sequence[Expectation]
