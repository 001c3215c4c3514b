"""Frozen dataclasses as rows of mailslice's own tables, and back."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from datetime import datetime, timedelta
from enum import Enum
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from mailslice.codec.row import epoch_ms, instant

T = TypeVar("T")
_EMPTY = (bool, int, str, bytes, timedelta, tuple)
"""Types for which a null column means the empty value, if the field has no default."""
_MILLISECOND = timedelta(milliseconds=1)
_CQL = {int: "int", datetime: "timestamp", timedelta: "bigint"}


class RowCodec(Generic[T]):
    """Maps each field to the column of its name, or to the column that `columns` gives for it.

    Stores a datetime as a timestamp, a timedelta as milliseconds, a tuple as a list, an enum as
    its value. Reads a null column as the field's default, else as None or the empty value.
    """

    def __init__(self, record: type[T], *, omit: Collection[str] = (), **columns: str) -> None:
        hints = get_type_hints(record)
        all_fields = fields(record)  # type: ignore[arg-type]
        stored = [field for field in all_fields if field.name not in omit]
        self._record = record
        self._names = tuple(field.name for field in stored)
        self._encoders = [_encoder(_kind(hints[name])) for name in self._names]
        self._decoders = [_decoder(hints[field.name], field) for field in stored]
        self.columns = tuple(columns.get(name, name) for name in self._names)
        kinds = [_CQL.get(_kind(hints[name]), "text") for name in self._names]
        self.types = dict(zip(self.columns, kinds, strict=True))
        """Column -> CQL type, for a TableShape."""

    def values(self, record: T) -> list[Any]:
        """The values to bind, in the order of `columns`."""
        values = zip(self._names, self._encoders, strict=True)
        return [
            None if (value := getattr(record, name)) is None else encode(value)
            for name, encode in values
        ]

    def mapping(self, record: T) -> dict[str, Any]:
        """The values to bind, by column."""
        return dict(zip(self.columns, self.values(record), strict=True))

    def of_mapping(self, row: Mapping[str, Any]) -> T:
        """The dataclass of a row. Columns without a field are ignored."""
        return self.record([row[column] for column in self.columns])

    def record(self, values: Sequence[Any], **omitted: object) -> T:
        """The dataclass of a row's values; `omitted` are the fields that have no column."""
        decoded = zip(self._names, self._decoders, values, strict=True)
        return self._record(**{name: decode(value) for name, decode, value in decoded}, **omitted)


def _kind(hint: Any) -> Any:
    """The type without None; for a NewType, the type that it is based on."""
    if NoneType in get_args(hint):
        (hint,) = (kind for kind in get_args(hint) if kind is not NoneType)
    return getattr(hint, "__supertype__", get_origin(hint) or hint)


def _encoder(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, Enum):
        return attrgetter("value")
    converters: dict[type, Callable[[Any], Any]] = {
        datetime: epoch_ms,
        timedelta: lambda age: age // _MILLISECOND,
        tuple: list,
    }
    return converters.get(kind, lambda value: value)


def _decoder(hint: Any, field: Field[Any]) -> Callable[[Any], Any]:
    kind, null = _kind(hint), field.default
    is_called = kind in (tuple, bytes) or issubclass(kind, Enum)
    converters: dict[type, Callable[[Any], Any]] = {
        datetime: instant,
        timedelta: lambda milliseconds: milliseconds * _MILLISECOND,
    }
    convert = converters.get(kind, kind if is_called else lambda value: value)
    if null is MISSING and NoneType in get_args(hint):
        null = None
    elif null is MISSING and kind in _EMPTY:
        null = kind()
    elif null is MISSING:
        return convert  # a null key or time is an error
    return lambda value: null if value is None else convert(value)
