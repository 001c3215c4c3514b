"""On a full disk a command says so before it writes a file that would be cut off."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stack import benching, demo, services, testing
from stack.program import CannotStart
from stack.settings import Profile, stack_settings


@pytest.mark.parametrize(
    ("module", "profile", "command"),
    [
        (demo, Profile.RUN, demo.run_demo),
        (testing, Profile.TEST, lambda: testing.test([])),
        (testing, Profile.TEST, lambda: testing.soak([])),
        (benching, Profile.TEST, lambda: benching.bench([])),
    ],
)
def test_nothing_is_written_before_the_disk_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    module: object,
    profile: Profile,
    command: Callable[[], int],
) -> None:
    prefix = "MAILSLICE_STACK_TEST_" if profile is Profile.TEST else "MAILSLICE_STACK_"
    stack = stack_settings(
        profile, {f"{prefix}STATE": str(tmp_path / "state")}, Path(__file__).parents[3]
    )
    monkeypatch.setattr(module, "stack_settings", lambda _: stack)
    monkeypatch.setattr(
        services.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 5 * 2**20})()
    )
    monkeypatch.delenv("MAIL", raising=False)
    with pytest.raises(
        CannotStart,
        match=(
            rf"{tmp_path} has 5 MiB free, 4096 are needed\. Remedy: make room, or set "
            r"MAILSLICE_STACK_DISK_MIB"
        ),
    ):
        command()
    assert [path.name for path in tmp_path.iterdir()] == ["state.lock"]
