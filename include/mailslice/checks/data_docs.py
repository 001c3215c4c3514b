"""Data Docs of all gates below one folder: each gate adds pages of its own, so that gates beside each other cannot spoil one another's."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mailslice.model.clock import Clock, system_clock

FOLDER = "data_docs"
GATES = f"{FOLDER}/gates"
"""A page for each gate of each run."""
ENTRIES = f"{FOLDER}/entries"
"""A small file for each page, named by its time, in a folder for each day: the index looks at the newest alone, however many there are."""
VALIDATIONS = f"{FOLDER}/validations"
"""Great Expectations' own pages: DUTY/GATE/FRAME/RUN/TIME/PAGE."""
_NEWEST = 200
_LONGEST = 180
_AT_ONCE = 8


class Files(Protocol):
    """Where the pages go: `duty.artifacts.Artifacts`."""

    def write(self, name: str, data: bytes) -> None: ...
    def read(self, name: str) -> bytes | None: ...
    def files(self, name: str) -> list[str]: ...
    def folders(self, name: str) -> list[str]: ...
    def uri(self, name: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Docs:
    """The Data Docs of one run's gates."""

    files: Files
    duty: str
    queue: str
    run: str
    clock: Clock = system_clock

    @property
    def run_name(self) -> str:
        """Names the run in paths and pages. One that is too long for a file's name ends in a digest of all of it."""
        whole = f"{self.duty}-{self.queue}-{self.run}"
        name = re.sub(r"[^A-Za-z0-9._+-]", "-", whole)
        if len(name) <= _LONGEST:
            return name
        digest = hashlib.blake2s(whole.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return f"{name[: _LONGEST - len(digest) - 1]}-{digest}"

    def publish(
        self, site: Path, gate: str, *, success: bool, findings: Sequence[Mapping[str, object]]
    ) -> str:
        """Copy a gate's pages to the artifacts, and list it in the index; the link to its page."""
        styled = set(self.files.files(f"{FOLDER}/static"))
        for file in sorted(path for path in site.rglob("*") if path.is_file()):
            name = f"{FOLDER}/{file.relative_to(site).as_posix()}"
            if file.parent == site or name in styled:
                continue  # Great Expectations' own index knows this gate alone; styles are the same for all
            self.files.write(name, file.read_bytes())
        pages = sorted(
            path.relative_to(site).as_posix() for path in (site / "validations").rglob("*.html")
        )
        now = self.clock()
        page = f"{GATES}/{self.run_name}-{gate}.html"
        entry = {
            "duty": self.duty,
            "queue": self.queue,
            "run": self.run,
            "gate": gate,
            "success": success,
            "pages": pages,
            "at": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "page": page.removeprefix(f"{FOLDER}/"),
        }
        self.files.write(page, _gate_page(entry, findings).encode())
        self.files.write(
            f"{ENTRIES}/{now:%Y-%m-%d}/{now:%H%M%S.%fZ}-{self.run_name}-{gate}.json",
            json.dumps(entry).encode(),
        )
        self.files.write(f"{FOLDER}/index.html", _index(self._entries()).encode())
        return link(self.files.uri(page))

    def _entries(self) -> list[dict[str, Any]]:
        """The newest gates, newest first, each page once: a gate that was tried again has written its page anew."""
        names: list[str] = []
        for day in sorted(self.files.folders(ENTRIES), reverse=True):
            names += sorted(
                (name for name in self.files.files(f"{ENTRIES}/{day}") if name.endswith(".json")),
                reverse=True,
            )
            if len(names) >= _NEWEST:
                break
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # One that is gone by now was pruned by another run's report.
            found = [
                json.loads(data)
                for data in pool.map(self.files.read, names[:_NEWEST])
                if data is not None
            ]
        newest: dict[str, dict[str, Any]] = {}
        for entry in found:
            newest.setdefault(entry["page"], entry)
        return list(newest.values())


def link(uri: str) -> str:
    """A link that a browser opens: file:// for folders."""
    return uri if "://" in uri else Path(uri).as_uri()


_STYLE = (
    "<style>body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1d2733}table{border-collapse:collapse;width:100%}"
    "td,th{border-bottom:1px solid #d8dee6;padding:.4rem .6rem;text-align:left;vertical-align:top}.no{color:#a3122a;font-weight:600}.yes{color:#146c43}</style>"
)


def _page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>{_STYLE}'
    return f'<!doctype html><html lang="en">{head}<h1>{title}</h1>{body}</html>'


def _gate_page(entry: Mapping[str, Any], findings: Sequence[Mapping[str, object]]) -> str:
    rows = "".join(
        f"<tr><td class={'yes' if each['success'] else 'no'}>{'true' if each['success'] else 'not true'}</td><td>{_escape(each['expectation'])}</td>"
        f"<td>{_escape(each['column'])} = {_escape(each['observed'])}</td><td>{each['failedRows']} of {each['rows']}</td></tr>"
        for each in findings
    )
    pages = " · ".join(
        f'<a href="../{_escape(page)}">{_escape(Path(page).stem)}</a>' for page in entry["pages"]
    )
    table = f"<table><tr><th></th><th>Expectation</th><th>Seen</th><th>Rows that break it</th></tr>{rows}</table>"
    own = f"Great Expectations' own pages: {pages or 'none, nothing was looked at'}."
    about = f"<p>Run {_escape(entry['run'])}, {_escape(entry['at'])}. {own} <a href=../index.html>All gates</a></p>"
    return _page(
        f"{_escape(entry['duty'])}: {_escape(entry['gate'])} of queue {_escape(entry['queue'])}",
        about + table,
    )


def _index(entries: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(map(_index_row, entries))
    return _page(
        "Data Docs",
        f"<table><tr><th>When</th><th>Duty</th><th>Queue</th><th>Gate</th><th></th><th>Run</th></tr>{rows}</table>",
    )


def _index_row(each: Mapping[str, Any]) -> str:
    verdict = f"<td class={'yes' if each['success'] else 'no'}>{'passed' if each['success'] else 'failed'}</td>"
    gate = f'<a href="{_escape(each["page"])}">{_escape(each["gate"])}</a>'
    cells = "".join(f"<td>{_escape(each[name])}</td>" for name in ("at", "duty", "queue"))
    return f"<tr>{cells}<td>{gate}</td>{verdict}<td>{_escape(each['run'])}</td></tr>"


def _escape(value: object) -> str:
    return html.escape(str(value), quote=True)
