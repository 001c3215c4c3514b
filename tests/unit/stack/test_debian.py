"""Another release of Debian: its mirror, and how a program in it is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.debian import debian, inside, mirror
from stack.program import CannotStart
from stack.rabbitmq import rabbitmq
from stack.settings import Profile, stack_settings

TARGETS = """\
http://elsewhere.example/apt/ stable
http://mirror.example/debian-security/ bookworm-security
http://mirror.example/debian/ bookworm
http://mirror.example/debian/ bookworm-updates
"""


def test_the_mirror_is_that_of_apts_own_sources() -> None:
    assert mirror(TARGETS, "bookworm") == "http://mirror.example/debian/"


@pytest.mark.parametrize("codename", ["trixie", ""])
def test_sources_without_the_own_release_are_said(codename: str) -> None:
    with pytest.raises(CannotStart, match="Remedy: give apt the sources"):
        mirror(TARGETS, codename)


def test_a_release_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "debian-trixie").mkdir()
    assert debian("trixie", tmp_path) == tmp_path / "debian-trixie"


def test_only_root_can_make_one_and_the_setting_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CannotStart, match="unset MAILSLICE_STACK_RABBITMQ_RELEASE"):
        debian("trixie", tmp_path)


def test_a_command_gets_its_words_as_they_are_and_the_shared_folders_before_them() -> None:
    words = inside(Path("/root of it"), (Path("/a b"), Path("/c")), "echo", "$HOME x", "--")
    assert words[:4] == ("unshare", "--mount", "--propagation", "private")
    assert words[-7:] == ("/root of it", "/a b", "/c", "--", "echo", "$HOME x", "--")


def test_a_broker_of_another_release_sees_the_state_of_its_stack(tmp_path: Path) -> None:
    (tmp_path / "debian-trixie").mkdir()
    environ = {
        "MAILSLICE_STACK_CACHE": str(tmp_path),
        "MAILSLICE_STACK_RABBITMQ_RELEASE": "trixie",
        "MAILSLICE_STACK_STATE": str(tmp_path / "state"),
    }
    stack = stack_settings(Profile.RUN, environ)
    mapper, broker = rabbitmq(stack)
    assert broker.command[-4:] == (
        str(tmp_path / "debian-trixie"),
        str(tmp_path / "state"),
        "--",
        "/usr/lib/rabbitmq/bin/rabbitmq-server",
    )
    assert "epmd" in mapper.command
    assert broker.environment["RABBITMQ_MNESIA_BASE"].startswith(str(tmp_path / "state"))
