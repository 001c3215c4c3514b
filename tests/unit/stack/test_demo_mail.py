"""The mail of `make run` is enqueued once, whatever happens in between."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack import demo_mail, services
from stack.demo_mail import DemoMail, source_of
from stack.program import CannotStart
from stack.settings import Profile, StackSettings, stack_settings
from stack.steps import Steps


class _Commands:
    """`mailslice`, as far as the demo uses it: what it enqueued, by content; stops after `most`
    mails, as if killed.
    """

    def __init__(self, most: int = 10_000, refused: str = "") -> None:
        self.enqueued: list[bytes] = []
        self.folders: list[str] = []
        self.drained = 0
        self._most = most
        self._refused = refused

    def lines(self, *words: str) -> Iterator[dict[str, Any]]:
        if words[0] == "worker":
            for number in range(int(words[words.index("--max") + 1])):
                self.drained += 1
                yield {"enqueueId": f"{number}"}
            return
        folder = Path(words[3])
        self.folders.append(folder.name)
        for file in sorted(folder.iterdir()):
            if len(self.enqueued) == self._most:
                raise KeyboardInterrupt
            if self._refused and self._refused.encode() in file.read_bytes():
                yield {"error": "the headers name no recipient", "path": str(file)}
                continue
            self.enqueued.append(file.read_bytes())
            yield {"enqueueId": "x", "path": str(file)}


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackSettings:
    monkeypatch.setattr(demo_mail.time, "sleep", lambda _: None)
    return stack_settings(Profile.RUN, {"MAILSLICE_STACK_STATE": str(tmp_path / "state")}, tmp_path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "mails"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}.eml").write_bytes(b"Subject: %d\n\nbare\r\nmixed\n\xff" % number)
    return folder


def _go(stack: StackSettings, source: Path, commands: _Commands) -> DemoMail:
    mail = DemoMail(stack, source)
    with Steps(stderr=True).step("x") as step:
        if not mail.enqueued:
            mail.spool()
            mail.enqueue(commands, "2s", step)  # type: ignore[arg-type]
        mail.drain(commands, step)  # type: ignore[arg-type]
    return mail


def test_mails_go_in_order_over_five_slices_byte_for_byte_and_three_fifths_are_drained(
    stack: StackSettings, source: Path
) -> None:
    commands = _Commands()
    mail = _go(stack, source, commands)
    assert commands.enqueued == [file.read_bytes() for file in sorted(source.iterdir())]
    assert commands.folders == [f"slice-{number}" for number in range(5)]
    assert (mail.progress.enqueued, mail.progress.drained) == (12, 8)


def test_a_second_run_enqueues_and_drains_nothing(stack: StackSettings, source: Path) -> None:
    _go(stack, source, _Commands())
    again = _Commands()
    mail = _go(stack, source, again)
    assert (again.enqueued, again.drained) == ([], 0)
    assert (mail.progress.enqueued, mail.progress.drained) == (12, 8)


@pytest.mark.parametrize("most", [0, 1, 4, 5, 11])
def test_a_run_that_was_stopped_goes_on_where_it_was(
    stack: StackSettings, source: Path, most: int
) -> None:
    first, second = _Commands(most), _Commands()
    with pytest.raises(KeyboardInterrupt):
        _go(stack, source, first)
    mail = _go(stack, source, second)
    assert first.enqueued + second.enqueued == [
        file.read_bytes() for file in sorted(source.iterdir())
    ]
    assert (mail.progress.enqueued, first.drained + second.drained) == (12, 8)


def test_a_mail_that_is_refused_is_listed_and_not_tried_for_ever(
    stack: StackSettings, source: Path
) -> None:
    mail = _go(stack, source, _Commands(refused="Subject: 3"))
    assert mail.progress.failures == ["00000003.eml: the headers name no recipient"]
    assert mail.progress.enqueued == 11
    assert DemoMail(stack, source).enqueued


def test_a_source_that_changed_gives_what_is_new_in_it(stack: StackSettings, source: Path) -> None:
    _go(stack, source, _Commands())
    (source / "99.eml").write_bytes(b"Subject: new\n\n")
    (source / "05.eml").rename(source / "98.eml")
    assert not DemoMail(stack, source).enqueued
    commands = _Commands()
    mail = _go(stack, source, commands)
    assert commands.enqueued == [b"Subject: new\n\n"]
    assert (mail.progress.enqueued, mail.progress.mails, mail.progress.drained) == (13, 13, 8)
    assert DemoMail(stack, source).enqueued


def test_a_mail_that_a_source_holds_twice_is_two_mails_and_each_is_enqueued_once(
    stack: StackSettings, source: Path
) -> None:
    same = (source / "00.eml").read_bytes()
    (source / "50.eml").write_bytes(same)
    first, second = _Commands(), _Commands()
    _go(stack, source, first)
    assert first.enqueued.count(same) == 2
    (source / "51.eml").write_bytes(same)
    _go(stack, source, second)
    assert second.enqueued == [same]


def test_a_source_whose_files_were_touched_gives_nothing(
    stack: StackSettings, source: Path
) -> None:
    _go(stack, source, _Commands())
    for file in source.iterdir():
        os.utime(file, (1, 1))
    commands = _Commands()
    assert _go(stack, source, commands).enqueued
    assert (commands.enqueued, commands.drained) == ([], 0)


def test_a_run_that_was_stopped_goes_on_also_when_the_source_grew_meanwhile(
    stack: StackSettings, source: Path
) -> None:
    first, second = _Commands(7), _Commands()
    with pytest.raises(KeyboardInterrupt):
        _go(stack, source, first)
    (source / "99.eml").write_bytes(b"Subject: new\n\n")
    _go(stack, source, second)
    assert sorted(first.enqueued + second.enqueued) == sorted(
        file.read_bytes() for file in source.iterdir()
    )


def test_names_that_are_no_utf_8_are_names(stack: StackSettings, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xfcll"))
    folder.mkdir()
    (folder / os.fsdecode(b"sch\xf6n.eml")).write_bytes(b"Subject: x\n\n")
    commands = _Commands()
    assert _go(stack, folder, commands).progress.enqueued == 1
    assert DemoMail(stack, folder).enqueued
    assert commands.enqueued == [b"Subject: x\n\n"]


def test_a_disk_that_cannot_hold_the_mails_is_said_before_they_are_written(
    stack: StackSettings, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (source / "large.eml").open("wb") as large:
        large.truncate(3 * 2**30)
    monkeypatch.setattr(
        services.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 3000 * 2**20})()
    )
    with pytest.raises(
        CannotStart,
        match=(
            rf"MAIL={source}: {stack.root} has 3000 MiB free, 3584 are needed for it\. Remedy: "
            r"make room, or name fewer mails"
        ),
    ):
        DemoMail(stack, source).check_room()
    (source / "large.eml").unlink()
    DemoMail(stack, source).check_room()


def test_mails_that_are_in_the_stores_need_no_more_room(
    stack: StackSettings, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (source / "large.eml").open("wb") as large:
        large.truncate(8 * 2**20)
    _go(stack, source, _Commands())
    (source / "99.eml").write_bytes(b"Subject: new\n\n")
    monkeypatch.setattr(
        services.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 513 * 2**20})()
    )
    DemoMail(stack, source).check_room()


def test_a_source_that_this_user_may_not_read_is_named(
    stack: StackSettings, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exists(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", exists)
    with pytest.raises(
        CannotStart,
        match=(
            rf"MAIL={source}: {source}: Permission denied\. Remedy: name a folder of .* that "
            r"this user may read"
        ),
    ):
        DemoMail(stack, source)


def test_one_mail_is_enough(stack: StackSettings, tmp_path: Path) -> None:
    only = tmp_path / "only.eml"
    only.write_bytes(b"Subject: x\n\n")
    commands = _Commands()
    mail = _go(stack, only, commands)
    assert (mail.progress.enqueued, mail.progress.drained) == (1, 1)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_source_without_mail_is_named(stack: StackSettings, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        CannotStart,
        match=(
            rf"MAIL={tmp_path}/{name}: no .*Remedy: name a folder of \.eml files, an mbox or a "
            r"Maildir"
        ),
    ):
        _go(stack, tmp_path / name, _Commands())


@pytest.mark.parametrize(
    ("given", "from_environment", "wanted"),
    [
        (None, False, "tests/data/sample"),
        ("", False, "tests/data/sample"),
        ("/var/mail/root", True, "tests/data/sample"),
        ("/var/mail/root", False, "/var/mail/root"),
        ("/srv/mail", True, "/srv/mail"),
    ],
)
def test_the_mailbox_of_a_login_shell_is_not_taken_for_a_source(
    stack: StackSettings, given: str | None, from_environment: bool, wanted: str
) -> None:
    assert source_of(stack, given, from_environment=from_environment) == stack.root / wanted
