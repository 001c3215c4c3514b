"""The name of RabbitMQ's node, which its data hang on."""

import os
from pathlib import Path

import pytest

from stack import rabbitmq
from stack.settings import Profile, StackSettings, stack_settings


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = tmp_path / "rabbitmq-server"
    server.touch()
    monkeypatch.setattr(rabbitmq, "SERVER", server)
    monkeypatch.setattr(rabbitmq.shutil, "which", lambda name: f"/usr/bin/{name}")


def _stack(state: Path, port: int = 17072, profile: Profile = Profile.RUN) -> StackSettings:
    prefix = "MAILSLICE_STACK_TEST_" if profile is Profile.TEST else "MAILSLICE_STACK_"
    return stack_settings(
        profile, {f"{prefix}STATE": str(state), f"{prefix}RABBITMQ_PORT": str(port)}, state.parent
    )


def _name(stack: StackSettings) -> str:
    _, broker = rabbitmq.rabbitmq(stack)
    return broker.environment["RABBITMQ_NODENAME"]


@pytest.mark.usefixtures("installed")
def test_another_port_finds_the_data_of_before(tmp_path: Path) -> None:
    assert _name(_stack(tmp_path / "state", 17072)) == _name(_stack(tmp_path / "state", 21072))


@pytest.mark.usefixtures("installed")
def test_no_two_stacks_of_a_machine_have_the_same_node(tmp_path: Path) -> None:
    stacks = [
        _stack(tmp_path / clone / profile.value, profile=profile)
        for clone in ("a", "b")
        for profile in Profile
    ]
    names = {_name(stack) for stack in stacks}
    assert len(names) == 4
    assert all(name.startswith("mailslice-") and name.endswith("@localhost") for name in names)


@pytest.mark.usefixtures("installed")
def test_data_of_an_earlier_version_keep_their_name_the_newest_of_them(tmp_path: Path) -> None:
    mnesia = tmp_path / "state" / "rabbitmq" / "mnesia"
    for name, age in (("mailslice-run-17072@localhost", 20), ("mailslice-run-19000@localhost", 10)):
        for more in ("", "-feature_flags", "-plugins-expand"):
            (mnesia / (name + more)).mkdir(parents=True)
            os.utime(mnesia / (name + more), (2_000_000_000 - age, 2_000_000_000 - age))
    assert _name(_stack(tmp_path / "state")) == "mailslice-run-19000@localhost"
    assert _name(_stack(tmp_path / "state", 21072)) == "mailslice-run-19000@localhost"


@pytest.mark.usefixtures("installed")
def test_a_name_that_a_full_disk_cut_off_is_said_anew(tmp_path: Path) -> None:
    wanted = _name(_stack(tmp_path / "state"))
    (tmp_path / "state" / "rabbitmq" / "nodename").write_text("")
    assert _name(_stack(tmp_path / "state")) == wanted
