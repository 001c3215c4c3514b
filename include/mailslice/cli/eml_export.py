"""`queue export`: a .eml file for each mail, byte for byte. Never overwrites another file."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from mailslice.admin.mail_queue import MailQueue
from mailslice.cli.output import Output
from mailslice.cli.shapes import LOST, envelope
from mailslice.codec.shown import shown
from mailslice.model.errors import BadInput, ContentMissing, MailsliceError, SomeFailed
from mailslice.model.mail import ViewRow


def export_mails(out: Output, queue: MailQueue, rows: Iterable[ViewRow], folder: Path) -> None:
    """Export `rows` into `folder`, a line each.

    Raises SomeFailed for lost content or a file with other content, MailsliceError when the folder
    takes nothing more.
    """
    prepare(folder)
    failures: list[dict[str, object]] = []

    def lines() -> Iterator[dict[str, object]]:
        for row in rows:
            try:
                yield _export(queue, row, folder)
            except (ContentMissing, FileConflictError) as error:
                why, id_ = str(error), row.enqueue_id
                if isinstance(error, ContentMissing):
                    if not queue.still_live({id_: row.partition}):
                        continue  # completed meanwhile: its content is deleted
                    why = f"{LOST}: {error}"
                failures.append({"error": why, "enqueueId": id_, "name": row.item.mail.name})
        yield from failures

    count = out.rows(lines(), ("enqueueId", "name", "path", "bytes", "error"), empty="no mail")
    if failures:
        raise SomeFailed(
            f"{len(failures)} of {count} mails were not exported; they are listed last"
        )


class FileConflictError(Exception):
    """The file exists with other content."""


def prepare(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise BadInput(f"{shown(str(folder))} is not a folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"{shown(str(folder))} cannot be written to")


def _export(queue: MailQueue, row: ViewRow, folder: Path) -> dict[str, object]:
    """The enqueue id names the file, so that no mail can choose a path. Streams the content."""
    path = folder / f"{row.enqueue_id}.eml"
    content = Digested(queue.pieces(row))
    keep_file(path, content)
    facts = {"path": str(path), "bytes": content.size, "sha256": content.sha256.hexdigest()}
    return envelope(row.enqueue_id, row.item.mail) | facts


def keep_file(path: Path, content: "Digested") -> None:
    """Write the file, unless it exists. Raises FileConflictError, MailsliceError, OSError."""
    try:
        if path.exists() or path.is_symlink():
            if path.is_symlink() or not _has_content(path, content):
                raise FileConflictError(f"{path} exists with other content: left as it is")
        else:
            _write(path, content)
    except OSError as error:
        if error.filename is not None:
            raise
        # Some errors name no file, such as that of a full disk.
        raise MailsliceError(
            f"{path} cannot be read or written: {error.strerror or error}"
        ) from error


class Digested:
    """Pieces of a content, counted and digested as they pass."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.size = 0
        self.sha256 = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.size += len(piece)
            self.sha256.update(piece)
            yield piece


def _has_content(path: Path, content: Digested) -> bool:
    """Whether the file holds exactly these bytes; all of them are read then."""
    with path.open("rb") as stream:
        return all(stream.read(len(piece)) == piece for piece in content) and not stream.read(1)


def _write(path: Path, content: Digested) -> None:
    """Link a complete file: a killed export leaves no half mail; a link never replaces a file."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        with part.open("xb") as stream:
            stream.writelines(content)
        os.link(part, path)
    except FileExistsError:
        raise FileConflictError(f"{path} exists: left as it is") from None
    finally:
        part.unlink(missing_ok=True)
