"""Exports of contents that are larger than what may be in memory."""

from __future__ import annotations

import errno
import hashlib
import io
import tracemalloc
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.cli.eml_export import export_mails
from mailslice.model.errors import ContentMissing, MailsliceError, SomeFailed
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryEnqueuedMails, MemoryStores
from tests.contracts import making

MIB = 1024 * 1024
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Queue:
    """Its mails have so many mebibytes; negative: all but the last one are there, and that is
    missing. `live`: they are in the queue yet.
    """

    def __init__(self, mebibytes: int, *, live: bool = True) -> None:
        self.mebibytes = mebibytes
        self.live = live

    def still_live(self, wanted: Mapping[EnqueueId, Partition]) -> list[EnqueueId]:
        return list(wanted) if self.live else []

    def pieces(self, _row: ViewRow) -> Iterator[bytes]:
        for number in range(abs(self.mebibytes)):
            yield bytes([number % 256]) * MIB
        if self.mebibytes < 0:
            raise ContentMissing("no object")


class Out:
    """Keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def rows(self, lines: Iterator[dict[str, Any]], _columns: object, *, empty: str) -> int:
        assert empty
        self.lines += lines
        return len(self.lines)


def row() -> ViewRow:
    return ViewRow(
        QueueName("spool"),
        Partition(NOON, 0),
        NOON,
        QueuedMail(EnqueueId(uuid4()), Mail("m", None, ("a@b.example",)), BlobId("h"), BlobId("b")),
    )


def export(queue: Queue, wanted: ViewRow, folder: Path) -> list[dict[str, Any]]:
    out: Any = Out()
    given: Any = queue
    try:
        export_mails(out, given, [wanted], folder)
    except SomeFailed:
        assert any("error" in line for line in out.lines)
    lines: list[dict[str, Any]] = out.lines
    return lines


def test_a_large_mail_is_never_in_memory_as_a_whole_neither_written_nor_compared(
    tmp_path: Path,
) -> None:
    wanted, digest = row(), hashlib.sha256()
    for piece in Queue(40).pieces(wanted):
        digest.update(piece)
    tracemalloc.start()
    try:
        first = export(Queue(40), wanted, tmp_path)
        again = export(Queue(40), wanted, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert first == again
    assert (first[0]["bytes"], first[0]["sha256"]) == (40 * MIB, digest.hexdigest())
    assert hashlib.sha256(Path(first[0]["path"]).read_bytes()).hexdigest() == digest.hexdigest()
    assert peak < 8 * MIB


def test_a_file_that_holds_less_or_more_or_other_is_left_as_it_is(tmp_path: Path) -> None:
    for written in (b"", b"\x00" * (MIB - 1), b"\x00" * (MIB + 1), b"\x01" * MIB):
        wanted = row()
        file = tmp_path / f"{wanted.enqueue_id}.eml"
        file.write_bytes(written)
        [line] = export(Queue(1), wanted, tmp_path)
        assert "exists with other content" in line["error"]
        assert file.read_bytes() == written


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "No space left on device"), (errno.EFBIG, "File too large")],
)
def test_a_disk_that_takes_no_more_is_said_of_the_file_not_of_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    class Full(io.FileIO):
        def write(self, _content: object) -> int:
            raise OSError(number, words)

    monkeypatch.setattr(Path, "open", lambda path, _mode: io.BufferedWriter(Full(str(path), "xb")))
    wanted = row()
    with pytest.raises(MailsliceError) as raised:
        export(Queue(3), wanted, tmp_path)
    assert (
        str(raised.value)
        == f"{tmp_path / str(wanted.enqueue_id)}.eml cannot be read or written: {words}"
    )
    assert raised.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_content_that_ends_too_early_leaves_no_file(tmp_path: Path) -> None:
    [line] = export(Queue(-3), row(), tmp_path)
    assert line["error"].startswith("content lost: ")
    assert list(tmp_path.iterdir()) == []


def test_a_mail_that_is_done_meanwhile_is_not_called_lost(tmp_path: Path) -> None:
    assert export(Queue(-3, live=False), row(), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_lost_mail_is_looked_for_in_its_own_slice_and_not_in_all_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand lost mails in a thousand slices were a hundred million reads."""
    name, asked = QueueName("spool"), list[Partition]()
    stores: Any = MemoryStores(load_settings({}, state_file=Path("/nonexistent")))
    rows = [making.row(name, NOON - timedelta(hours=number)) for number in range(24)]
    stores.tables.written.insert_many(rows)
    stores.tables.browse_starts.write(name, rows[-1].partition.slice_start, 1)
    by_ids = MemoryEnqueuedMails.by_ids

    def counted(table: Any, queue: QueueName, wanted: Any, *more: Any) -> Iterator[ViewRow]:
        wanted = list(wanted)
        asked.extend(partition for partition, _ in wanted)
        return by_ids(table, queue, wanted, *more)

    monkeypatch.setattr(MemoryEnqueuedMails, "by_ids", counted)
    out: Any = Out()
    with pytest.raises(SomeFailed, match="24 of 24 mails were not exported"):
        export_mails(out, MailQueue(stores, name, lambda: NOON), iter(rows), tmp_path)
    assert asked == [one.partition for one in rows]
