"""Makes docs/performance.md from a template, and its JSON. Table columns are JSON fields."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mailslice.bench.curves import curves_svg
from mailslice.cli.output import cell, iso
from mailslice.model.clock import system_clock

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BenchTable:
    """A table of a bench's rows, `{bench: columns}`, or of objects, `{bench.field: columns}`."""

    bench: str
    part: str | None
    columns: str

    @property
    def title(self) -> str:
        return f"{self.bench} {self.part or ''}".strip()

    def rows(self, rows: Sequence[Row]) -> list[Row]:
        """The table's rows. An object of a field gets the `size` of the row that contains it."""
        parts: list[Row] = []
        for row in rows:
            part = row.get(self.part) if self.part else row
            if row["bench"] == self.bench and part:
                several = part if isinstance(part, list) else [part]
                parts += [{"size": row.get("size"), **repeat} for repeat in several]
        return parts


_TEMPLATE = (files("mailslice.bench") / "performance.md").read_text(encoding="utf-8").strip()
_TABLE = re.compile(r"\{(\w+)(?:\.(\w+))?: (.+)\}")
TABLES = [BenchTable(*match.groups()) for match in _TABLE.finditer(_TEMPLATE)]


def write_page(file: Path, rows: Sequence[Row]) -> None:
    """Writes the page, and its JSON and picture beside it."""
    file.write_text(page_text(rows) + "\n", encoding="utf-8")
    measured = {"date": iso(system_clock())[:10], "machine": machine(), "rows": rows}
    file.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".svg").write_bytes(curves_svg(rows))


def page_text(rows: Sequence[Row]) -> str:
    """The page, without blocks whose table has no rows and without headings that have no block."""
    page, heading = list[str](), list[str]()
    for block in _TEMPLATE.split("\n\n"):
        if match := _TABLE.search(block):
            part = BenchTable(*match.groups())
            if shown := part.rows(rows):
                lines = "\n".join(table(part.columns.split(), shown))
                page += [*heading, f"{block[: match.start()]}\n{lines}"]
                heading = []
        elif block.startswith("## "):
            heading = [block]
        else:
            page.append(block)
    missing = dict.fromkeys(one.title for one in TABLES if not one.rows(rows))
    given = {
        "{date}": iso(system_clock())[:10],
        "{machine}": machine(),
        "{missing}": ", ".join(missing),
    }
    text = "\n\n".join(page)
    for name, value in given.items():
        text = text.replace(name, value or "none")
    return text


def table(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The table in Markdown. A column is a field of the rows, or a path to a nested field."""
    head = " | ".join(column.replace("_", " ").replace(".", ": ") for column in columns)
    lines = [f"| {' | '.join(_text(_at(row, column)) for column in columns)} |" for row in rows]
    return [f"| {head} |", "|" + "---:|" * len(columns), *lines]


def _at(row: Row, path: str) -> Any:
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        if "min" in value:
            return f"{_text(value['min'])} - {_text(value['max'])}"
        return " / ".join(_text(item) for item in value.values())
    if isinstance(value, list):
        return " ".join(f"{item:,.0f}" if item >= 100 else f"{item:.3g}" for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return cell(value)
    return f"{value:,}"


def machine() -> str:
    """Describes this machine: cores, memory, operating system, Python version."""

    def field(path: str, pattern: str, otherwise: str) -> str:
        try:
            match = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)
        except OSError:
            match = None
        return match[1] if match else otherwise

    model = field("/proc/cpuinfo", r"^model name\s*:\s*(.+)$", platform.machine())
    kib = int(field("/proc/meminfo", r"^MemTotal:\s+(\d+)", "0"))
    system = field("/etc/os-release", r'^PRETTY_NAME="?([^"\n]+)', platform.system())
    python = platform.python_version()
    return f"{os.cpu_count()} cores ({model}), {kib // 2**20} GiB, {system}, Python {python}"
