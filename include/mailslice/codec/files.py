"""Reads mails from *.eml files, folders of them, mbox, Maildir and standard input, one by one."""

import itertools
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO, FileIO
from pathlib import Path
from typing import BinaryIO

STDIN = "-"
_CHUNK = 1 << 20
_SEPARATOR = re.compile(rb"From \S(?>.*?\d:\d{2}).*?\d{4}")
"""A `From ` line with a time and a year. It begins a mail even without an empty line before it.

The atomic group stops at the first time in the line: if no year follows it, none follows a later
time. A match tried from each time would take hours on a crafted line.
"""
_MAILDIR_NAME = re.compile(r"\d+[._][^.]+\..+|.+:2,[A-Za-z]*|.+\.eml", re.IGNORECASE | re.DOTALL)
"""`time.unique.host`, or any name with flags; or an *.eml that a person put there."""
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FoundMail:
    """A mail. `label`: its place (`file`, or `mbox#3`); `error`: why it has no content."""

    label: str
    content: bytes | None
    error: str | None = None


def read_mails(
    path: Path | str, max_bytes: int | None = None, stdin: BinaryIO | None = None
) -> Iterator[FoundMail]:
    """The mails at `path`. An *.eml file is one mail, whatever its bytes. Other files are mboxes. A
    folder is a Maildir, or holds *.eml at any depth.

    `-` is standard input: an mbox if it begins with a `From ` line that has a time and a year, else
    one mail. In an mbox, a `From ` line after an empty line, or with time and year, begins the next
    mail, even if it was meant as text and not quoted (`>From `). A mail of more than `max_bytes`
    gives an error. Raises nothing: missing and unreadable files become errors, too.
    """
    if str(path) == STDIN:
        yield from _stream(stdin or sys.stdin.buffer, max_bytes)
        return
    if not str(path):
        # Path("") is the current folder.
        yield FoundMail("", None, "an empty path is no file and no folder")
        return
    source = Path(path)
    try:
        if source.is_dir():
            yield from _folder(source, max_bytes)
        elif not source.exists():
            yield FoundMail(str(source), None, "no such file or folder")
        elif not source.is_file():
            yield FoundMail(str(source), None, "neither a file nor a folder")
        elif source.suffix.lower() == ".eml":
            yield _read_file(source, max_bytes)
        else:
            with source.open("rb") as stream:
                yield from _Mbox(str(source), stream, max_bytes).mails()
    except OSError as error:
        yield FoundMail(str(source), None, error.strerror or str(error))


def _stream(stream: BinaryIO, max_bytes: int | None) -> Iterator[FoundMail]:
    try:
        first = stream.readline(_CHUNK)
        if _SEPARATOR.match(first):
            yield from _Mbox(STDIN, stream, max_bytes, first).mails()
        else:
            yield _mail(STDIN, _with_rest(first, stream, max_bytes), max_bytes)
    except OSError as error:
        yield FoundMail(STDIN, None, error.strerror or str(error))


def _read_file(path: Path, max_bytes: int | None) -> FoundMail:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe may never end
            return FoundMail(str(path), None, "not a file")
        with path.open("rb", buffering=0) as stream:
            return _mail(str(path), _with_rest(b"", stream, max_bytes), max_bytes)
    except OSError as error:
        return FoundMail(str(path), None, error.strerror or str(error))


def _with_rest(first: bytes, stream: BinaryIO | FileIO, max_bytes: int | None) -> bytes:
    """`first` and the rest of `stream`. Stops once it has more than `max_bytes` bytes."""
    content = BytesIO()
    content.write(first)
    while (max_bytes is None or content.tell() <= max_bytes) and (chunk := stream.read(_CHUNK)):
        content.write(chunk)
    return content.getvalue()


def _mail(label: str, content: bytes, max_bytes: int | None) -> FoundMail:
    if max_bytes is not None and len(content) > max_bytes:
        return FoundMail(label, None, _too_large(max_bytes))
    return FoundMail(label, content)


def _too_large(max_bytes: int) -> str:
    return f"larger than the limit of {max_bytes} bytes (MAILSLICE_QUEUE_MAX_MAIL_BYTES)"


def _folder(folder: Path, max_bytes: int | None) -> Iterator[FoundMail]:
    parts = [folder / name for name in ("new", "cur") if (folder / name).is_dir()]
    maildir = _is_maildir(folder, parts)
    any_file = False
    for entry in _maildir(parts) if maildir else _eml_files(folder):
        any_file = True
        yield _read_file(entry, max_bytes) if isinstance(entry, Path) else entry
    if not any_file and not maildir:
        why = "no *.eml in this folder, and it is no Maildir (new, cur)"
        yield FoundMail(str(folder), None, why)


def _is_maildir(folder: Path, parts: Sequence[Path]) -> bool:
    """Whether `folder`, with `new` and `cur` in `parts`, is a Maildir. git, tar and rsync may drop
    an empty folder: one of the two is enough if all its files have names of a Maildir, and no *.eml
    is elsewhere.
    """
    if len(parts) != 1:
        return len(parts) == 2
    shown = (path for path in parts[0].iterdir() if not path.name.startswith("."))
    if not all(_MAILDIR_NAME.fullmatch(path.name) and not path.is_dir() for path in shown):
        return False
    return all(path.parent == parts[0] for path in _eml_files(folder) if isinstance(path, Path))


def _maildir(parts: Iterable[Path]) -> Iterator[Path | FoundMail]:
    for part in parts:
        try:
            shown = (path for path in part.iterdir() if not path.name.startswith("."))
            yield from sorted(path for path in shown if not path.is_dir())
        except OSError as error:
            yield _unread(error)


def _eml_files(folder: Path) -> Iterator[Path | FoundMail]:
    """*.eml files at any depth; errors for unreadable folders, and links to folders elsewhere."""
    unread: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=unread.append):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if name.lower().endswith(".eml"))
        for link in (Path(parent, name) for name in folders):
            if link.is_symlink() and not link.resolve().is_relative_to(folder.resolve()):
                why = "a link to a folder is not followed; name that folder itself"
                yield FoundMail(str(link), None, why)
    yield from map(_unread, unread)


def _unread(error: OSError) -> FoundMail:
    return FoundMail(str(error.filename), None, error.strerror or str(error))


class _Mbox:
    """Streams an mbox.

    A mail begins after a `From ` line that follows an empty line, or that has a time and a year. It
    ends before the empty line ahead of the next such line. `>From ` (mboxo) and `>>From ` (mboxrd)
    lose one `>`. All other bytes of a mail stay as they are.
    """

    def __init__(
        self, label: str, stream: BinaryIO, max_bytes: int | None, first: bytes = b""
    ) -> None:
        """`first`: the part of the first line that was read already."""
        self._label = label
        rest = iter(lambda: stream.readline(_CHUNK), b"")
        self._lines = itertools.chain([first] if first else [], rest)
        self._max_bytes = max_bytes
        self._number = 0
        self._parts: list[bytes] = []
        self._size = 0

    def mails(self) -> Iterator[FoundMail]:
        inside = after_empty = False
        preamble = True
        line_start = True
        for line in self._lines:
            separates = line_start and line.startswith(b"From ")
            if separates and (after_empty or preamble or _SEPARATOR.match(line)):
                if inside:
                    yield self._finish()
                inside, preamble = True, False
                self._number += 1
                self._skip_rest(line)
                line_start, after_empty = True, False
                continue
            if preamble and line.strip():
                preamble = False
                why = "it does not begin with a line 'From ' (a single mail is named *.eml)"
                yield FoundMail(self._label, None, f"not an mbox: {why}")
            if inside:
                self._append(line)
            after_empty = line_start and line in {b"\n", b"\r\n"}
            line_start = line.endswith(b"\n")
        if inside:
            yield self._finish()

    def _skip_rest(self, line: bytes) -> None:
        while line and not line.endswith(b"\n"):
            line = next(self._lines, b"")

    def _append(self, line: bytes) -> None:
        self._size += len(line)
        if self._max_bytes is not None and self._size > self._max_bytes + _CHUNK:
            self._parts.clear()  # too large: from here on only the size counts
        else:
            self._parts.append(line)

    def _finish(self) -> FoundMail:
        label, size = f"{self._label}#{self._number}", self._size
        content = b"".join(self._parts)
        self._parts, self._size = [], 0
        for empty_line in (b"\n\r\n", b"\n\n"):
            if content.endswith(empty_line):
                content = content[: 1 - len(empty_line)]
                break
        else:
            content = b"" if content in {b"\n", b"\r\n"} else content
        content = _QUOTED_FROM.sub(rb"\1", content)
        if self._max_bytes is not None and size > self._max_bytes + _CHUNK:
            return FoundMail(label, None, _too_large(self._max_bytes))
        return _mail(label, content, self._max_bytes)
