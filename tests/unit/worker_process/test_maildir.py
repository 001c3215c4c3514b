from __future__ import annotations

import mailbox
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.mail import EnqueueId, Mail
from mailslice.model.settings import Settings
from mailslice.worker.handlers.maildir import MaildirHandler
from mailslice.worker.outcome import Complete

MAIL = Mail("m", None, ("a@b",))
ID = EnqueueId(UUID("3f2504e0-4f89-41d3-9a0c-0305e82c3301"))
BYTES = b"Subject: x\nbare\rcr \xff\x00\r\n.\r\nFrom no quoting\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "box"


def handler(folder: Path) -> MaildirHandler:
    return MaildirHandler(Settings.model_validate({"worker": {"maildir": folder}}))


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_mail_is_stored_byte_for_byte_under_its_enqueue_id(folder: Path) -> None:
    assert handler(folder)(MAIL, BYTES, enqueue_id=ID) == Complete()
    assert files(folder) == {f"new/{ID}.mailslice": BYTES}
    assert len(mailbox.Maildir(folder, create=False)) == 1


def test_a_mail_delivered_again_is_there_once(folder: Path) -> None:
    store = handler(folder)
    store(MAIL, BYTES, enqueue_id=ID)
    store(MAIL, BYTES, enqueue_id=ID)
    assert list(files(folder)) == [f"new/{ID}.mailslice"]


def test_a_mail_that_a_reader_has_moved_and_flagged_does_not_come_back(folder: Path) -> None:
    store = handler(folder)
    store(MAIL, BYTES, enqueue_id=ID)
    (folder / "new" / f"{ID}.mailslice").rename(folder / "cur" / f"{ID}.mailslice:2,S")
    store(MAIL, BYTES, enqueue_id=ID)
    assert list(files(folder)) == [f"cur/{ID}.mailslice:2,S"]


def test_only_a_redelivery_looks_into_the_folder_of_what_was_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[Path] = []
    original = Path.glob

    def glob(path: Path, pattern: str) -> Iterator[Path]:
        listed.append(path)
        return original(path, pattern)

    monkeypatch.setattr(Path, "glob", glob)
    store = handler(folder)
    store(MAIL, BYTES, enqueue_id=ID, redelivered=False)
    assert listed == []
    (folder / "new" / f"{ID}.mailslice").rename(folder / "cur" / f"{ID}.mailslice:2,S")
    store(MAIL, BYTES, enqueue_id=ID, redelivered=True)
    assert listed == [folder / "cur"]


def test_what_a_killed_attempt_left_in_tmp_does_not_disturb_the_next(folder: Path) -> None:
    store = handler(folder)
    (folder / "tmp" / f"{ID}.mailslice.1.dead").write_bytes(BYTES[:4])
    store(MAIL, BYTES, enqueue_id=ID)
    assert files(folder)[f"new/{ID}.mailslice"] == BYTES


def test_a_write_that_fails_leaves_nothing_and_raises(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = handler(folder)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store(MAIL, BYTES, enqueue_id=ID)
    assert files(folder) == {}


def test_a_folder_that_cannot_be_made_is_a_bad_setting_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        BadSetting, match=r"MAILSLICE_WORKER_MAILDIR='.*/file/box': Not a directory"
    ):
        handler(tmp_path / "file" / "box")
