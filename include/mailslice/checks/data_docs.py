"""Data Docs of all gates below one folder.

Each gate writes pages of its own, so concurrent gates cannot overwrite one another's.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mailslice.checks.gate_page import gate_page, index_page
from mailslice.model.clock import Clock, system_clock

DOCS_FOLDER = "data_docs"
GATES = f"{DOCS_FOLDER}/gates"
"""A page for each gate of each run."""
ENTRIES = f"{DOCS_FOLDER}/entries"
"""One small file for each gate, named by its time, in a folder an hour. The index has the newest.

It names the gate's page and Great Expectations' own: validations/DUTY/GATE/FRAME/RUN/TIME/PAGE.
"""
_NEWEST = 200
_LONGEST = 180
_AT_ONCE = 8


class Files(Protocol):
    """Where the pages go: `maintenance.artifacts.Artifacts`."""

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
        """Names the run in paths and pages; too long a name ends in a digest of the full one."""
        full_name = f"{self.duty}-{self.queue}-{self.run}"
        name = re.sub(r"[^A-Za-z0-9._+-]", "-", full_name)
        if len(name) <= _LONGEST:
            return name
        data = full_name.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2s(data, digest_size=8).hexdigest()
        return f"{name[: _LONGEST - len(digest) - 1]}-{digest}"

    def publish(
        self, site: Path, gate: str, *, success: bool, findings: Sequence[Mapping[str, object]]
    ) -> str:
        """Copy a gate's pages to the artifacts, and list it in the index; the link to its page.

        The entry is written before the pages: pages without one would never be pruned.
        """
        validations = (site / "validations").rglob("*.html")
        pages = sorted(path.relative_to(site).as_posix() for path in validations)
        now = self.clock()
        page = f"{GATES}/{self.run_name}-{gate}.html"
        about = {"duty": self.duty, "queue": self.queue, "run": self.run, "gate": gate}
        at, own_page = f"{now:%Y-%m-%dT%H:%M:%SZ}", page.removeprefix(f"{DOCS_FOLDER}/")
        entry = {**about, "success": success, "pages": pages, "at": at, "page": own_page}
        self.files.write(
            f"{ENTRIES}/{now:%Y-%m-%dT%H}/{now:%H%M%S.%fZ}-{self.run_name}-{gate}.json",
            json.dumps(entry).encode(),
        )
        styled = set(self.files.files(f"{DOCS_FOLDER}/static"))
        for file in sorted(path for path in site.rglob("*") if path.is_file()):
            name = f"{DOCS_FOLDER}/{file.relative_to(site).as_posix()}"
            # Great Expectations' own index lists this gate alone. Styles are shared.
            if file.parent != site and name not in styled:
                self.files.write(name, file.read_bytes())
        self.files.write(page, gate_page(entry, findings).encode())
        self.files.write(f"{DOCS_FOLDER}/index.html", index_page(self._entries()).encode())
        return link(self.files.uri(page))

    def _entries(self) -> list[dict[str, Any]]:
        """The newest gates, newest first, each page once: a retried gate rewrites its page."""
        names: list[str] = []
        for hour in reversed(self.files.folders(ENTRIES)):
            files = reversed(self.files.files(f"{ENTRIES}/{hour}"))
            names += [name for name in files if name.endswith(".json")]
            if len(names) >= _NEWEST:
                break
        newest: dict[str, dict[str, Any]] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for data in pool.map(self.files.read, names[:_NEWEST]):
                # A damaged entry is not listed. A missing one was pruned by another run's report.
                with suppress(ValueError, TypeError, KeyError):
                    entry = json.loads(data or b"")
                    newest.setdefault(entry["page"], entry)
        return list(newest.values())


def link(uri: str) -> str:
    """A link that a browser opens: file:// for folders."""
    return uri if "://" in uri else Path(uri).as_uri()
