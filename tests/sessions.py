"""Sessions on pages, that is ```console blocks: the commands, and their answers.

Times, ids, numbers with a fraction and the width of a table differ from run to run: a comparison
ignores their values. `...` on a page stands for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SLOW = ("queue audit",)
"""Commands whose examples only `make soak` runs, because an audit uses Spark."""
NOT_RUN = (
    "worker run",
    "worker smtp-in",
    "queue delay",
    "queue move",
    "stuck release",
    "stuck discard",
    "postal stuck",
    "postal health",
    "postal quarantine list",
    "postal quarantine release",
    "postal quarantine discard",
    "postal quarantine export",
    "blobs restore",
    "mail trace",
    "airflow run",
    "exporter",
    "webadmin",
)
"""Commands whose examples are never run."""
_MORE = ">"
_DIFFERS = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "TIME"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"\d{8}T\d{6}Z?-[0-9a-f]{6}", "RUN"),
    (r"\bMail\d+", "MAIL"),
    (r"\d+\.\d+", "X"),
    (r"[─-]{3,}", "---"),
    (r"\s+", " "),
)


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as a user types it, with here documents, and the answer on the page."""

    command: str
    answer: str


def sessions(page: str) -> Iterator[Typed]:
    """All commands of a page, in order. Lines with `>` after a `$ ` line belong to its command."""
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            more = [line[2:] for line in lines[1:] if line.startswith(_MORE)]
            answer = [line for line in lines[1:] if not line.startswith(_MORE)]
            yield Typed("\n".join([lines[0], *more]), "\n".join(answer))


def is_answer(expected: str, actual: str) -> bool:
    """Whether the text matches the answer on the page."""
    pattern = ".*".join(map(re.escape, map(_comparable, expected.split("..."))))
    return re.fullmatch(pattern, _comparable(actual), re.DOTALL) is not None


def _comparable(text: str) -> str:
    for pattern, name in _DIFFERS:
        text = re.sub(pattern, name, text)
    return text.strip()
