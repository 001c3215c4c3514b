"""Expectations, each with a sentence, which the gate's message and Data Docs show."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Rows: TypeAlias = "Sequence[Mapping[str, Any]] | pa.Table | DataFrame"
"""What a gate checks: a few facts as dicts, or rows as an Arrow table or a Spark frame."""

Fact: TypeAlias = tuple[float | None, float | None, float | None, str]
"""(value, minimum, maximum, sentence that holds between them). None leaves a side open."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One rule over columns, row by row; `kind` and `arguments` are Great Expectations' own."""

    columns: tuple[str, ...]
    sentence: str
    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def equal(cls, column: str, value: float, sentence: str) -> Self:
        return cls.between(column, value, value, sentence)

    @classmethod
    def between(cls, column: str, low: float | None, high: float | None, sentence: str) -> Self:
        """Every value is from `low` to `high`, both included; None leaves a side open."""
        arguments = {"column": column, "min_value": low, "max_value": high}
        return cls((column,), sentence, "ExpectColumnValuesToBeBetween", arguments)

    @classmethod
    def one_of(cls, column: str, values: Sequence[object], sentence: str) -> Self:
        arguments = {"column": column, "value_set": list(values)}
        return cls((column,), sentence, "ExpectColumnValuesToBeInSet", arguments)

    @classmethod
    def unique(cls, columns: str | Sequence[str], sentence: str) -> Self:
        """No value occurs twice; of several columns no combination of values."""
        if isinstance(columns, str):
            return cls((columns,), sentence, "ExpectColumnValuesToBeUnique", {"column": columns})
        arguments = {"column_list": list(columns)}
        return cls(tuple(columns), sentence, "ExpectCompoundColumnsToBeUnique", arguments)

    @classmethod
    def rows(cls, count: int, sentence: str) -> Self:
        return cls((), sentence, "ExpectTableRowCountToEqual", {"value": count})

    @classmethod
    def same(cls, column: str, other: str, sentence: str) -> Self:
        arguments = {"column_A": column, "column_B": other}
        return cls((column, other), sentence, "ExpectColumnPairValuesToBeEqual", arguments)


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows (no addresses: pages show some), expectations. Fails if empty unless `may_be_empty`."""

    name: str
    rows: Rows
    expectations: Sequence[Expectation]
    may_be_empty: bool = False

    @classmethod
    def facts(cls, name: str, **facts: Fact) -> Self:
        """One row of facts, a column each."""
        rules = [
            Expectation.between(column, low, high, sentence)
            for column, (_, low, high, sentence) in facts.items()
        ]
        return cls(name, [{column: fact[0] for column, fact in facts.items()}], rules)

    @classmethod
    def zeros(cls, name: str, **counts: tuple[int, str]) -> Self:
        """One row of counts that must be 0: a column each, with the sentence that then holds."""
        facts = {column: (count, 0, 0, text) for column, (count, text) in counts.items()}
        return cls.facts(name, **facts)

    def rules(self) -> Iterator[Expectation]:
        """A not-null rule for each column that an expectation names, then the expectations."""
        for column in dict.fromkeys(name for rule in self.expectations for name in rule.columns):
            yield Expectation(
                (column,),
                f"Every row has a value of {column}.",
                "ExpectColumnValuesToNotBeNull",
                {"column": column},
            )
        yield from self.expectations
