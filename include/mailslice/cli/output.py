"""What commands print: a table for people, or one JSON object a line. Notes go to stderr.

`shown` escapes control, escape and bidi characters in tables; JSON escapes all but ASCII.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from mailslice.codec.shown import shortened, shown
from mailslice.model.batches import batches
from mailslice.model.clock import utc_text
from mailslice.model.durations import format_duration
from mailslice.model.errors import MailsliceError

_BATCH = 500
"""Rows of one printed table. A longer stream is printed as several tables."""
_LONGEST_LIST = 4
_LONGEST_TEXT = 5000
"""Characters of a text in a table; JSON has all of it."""
_WIDE = 400
"""Columns of a table for a file, a pipe, or a terminal in which its words would be cut."""


class StdoutClosedError(Exception):
    """The reader of stdout closed it. The command ends without a message."""


class NoRoomError(MailsliceError):
    """Stdout takes nothing more, such as a file on a disk that is full."""


def iso(instant: datetime) -> str:
    """ISO 8601 in UTC with Z, with milliseconds only when there are some."""
    return utc_text(instant, "milliseconds" if instant.microsecond else "seconds")


def plain(value: object) -> Any:  # noqa: PLR0911 - one line a type
    """`value` for JSON: times as ISO 8601, ids and bytes as text, durations in their short form."""
    match value:
        case datetime():
            return iso(value)
        case timedelta():
            return format_duration(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode("utf-8", "replace")
        case Enum():
            return value.value
        case UUID():
            return str(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case float() if not math.isfinite(value):
            return None  # JSON has no such number
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def json_line(value: Mapping[str, object]) -> str:
    """One line of ASCII, so that no mail can draw on a terminal."""
    return json.dumps(plain(value), ensure_ascii=True, separators=(", ", ": "))


def cell(value: object) -> str:
    """`value` as a cell of a table: safe for a terminal, without markup."""
    value = plain(value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        pairs = (
            f"{shown(str(key))}: {_in_a_line(item) if isinstance(item, dict) else cell(item)}"
            for key, item in value.items()
        )
        return "\n".join(pairs) or "-"
    if isinstance(value, list):
        return _listed(value) or "-"
    return shortened(value, _LONGEST_TEXT)


def _in_a_line(item: dict[str, Any]) -> str:
    """A nested object, on one line: else its keys would look like those of the outer object."""
    pairs = (
        f"{shown(key)} {'(' + _in_a_line(value) + ')' if isinstance(value, dict) else cell(value)}"
        for key, value in item.items()
    )
    return ", ".join(pairs) or "-"


def _listed(items: list[Any]) -> str:
    """Numbers on one line, objects of one shape as a grid, all else one below the other."""
    if items and all(re.fullmatch(r"\d+(\.\d+)?\+?", str(item)) for item in items):
        return " ".join(f"{item:>5}" for item in items)
    if items and all(isinstance(item, dict) and list(item) == list(items[0]) for item in items):
        lines = [
            [cell(key) for key in items[0]],
            *([cell(value) for value in item.values()] for item in items),
        ]
        if not any("\n" in text for line in lines for text in line):
            from rich.cells import cell_len, set_cell_size

            widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
            return "\n".join("  ".join(map(set_cell_size, line, widths)) for line in lines)
    return "\n".join(cell(item) for item in items)


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command prints. `as_json`: JSON lines instead of tables."""

    as_json: bool = False

    def one(self, item: Mapping[str, object]) -> None:
        """One object: a JSON line, or its keys and values under each other."""
        if self.as_json:
            self._write(json_line(item) + "\n")
        else:
            self._table(
                ("", " "), [{"": key, " ": value} for key, value in item.items()], header=False
            )

    def rows(
        self,
        items: Iterable[Mapping[str, object]],
        columns: Sequence[str] = (),
        empty: str = "nothing found",
    ) -> int:
        """A stream of objects: JSON lines, or tables of `columns` (default all keys); the count."""
        if self.as_json:
            return sum(self._write(json_line(item) + "\n") for item in items)
        count = 0
        for batch in batches(items, _BATCH):
            self._table(columns or list(batch[0]), batch)
            count += len(batch)
        if not count:
            self.note(empty)
        return count

    def line(self, item: Mapping[str, object], sentence: str) -> None:
        """One object of a stream: a JSON line, or `sentence`, which is safe to show."""
        self._write((json_line(item) if self.as_json else sentence) + "\n")

    def raw(self, content: bytes) -> None:
        with _stdout_errors():
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()

    def note(self, text: str) -> None:
        """A sentence for people, on stderr."""
        print(*map(shown, text.splitlines()), sep="\n", file=sys.stderr, flush=True)

    def _table(
        self, columns: Sequence[str], items: Sequence[Mapping[str, object]], header: bool = True
    ) -> None:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE, show_header=header, pad_edge=False)
        for column in columns:
            numeric = all(type(item.get(column)) in (int, float) for item in items)
            table.add_column(Text(column), overflow="fold", justify="right" if numeric else "left")
        for item in items:
            table.add_row(
                *(
                    Text(cell(_shortened(item.get(column)) if header else item.get(column)))
                    for column in columns
                )
            )
        console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        wide = console.options.update(max_width=_WIDE)
        if not sys.stdout.isatty() or (
            header and console.measure(table, options=wide).minimum > console.width
        ):
            console.width = _WIDE
        with console.capture() as text:
            console.print(table)
        lines = (line.rstrip() for line in text.get().splitlines())
        self._write("\n".join(lines).strip("\n") + "\n")

    def _write(self, text: str) -> int:
        """Writes `text` and returns 1, so that `rows` can count."""
        with _stdout_errors():
            try:
                sys.stdout.write(text)
            except UnicodeEncodeError:
                encoding = sys.stdout.encoding or "ascii"
                sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()
        return 1


@contextmanager
def _stdout_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as exc:
        raise StdoutClosedError from exc
    except OSError as exc:
        raise NoRoomError(f"stdout cannot be written to: {exc.strerror or exc}") from exc


def _shortened(value: object) -> object:
    """Cuts a list in a table of several rows: a mail may have a thousand recipients."""
    if isinstance(value, list | tuple) and len(value) > _LONGEST_LIST:
        return [*value[:_LONGEST_LIST], f"and {len(value) - _LONGEST_LIST} more"]
    return value
