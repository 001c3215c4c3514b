"""The commands of the Makefile as a person calls them."""

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from mailslice.model.settings import clone_root
from stack.settings import Ports
from stack.supervise import OWNER
from tests.acceptance.ending import afterwards
from tests.ports import free_ports

ROOT = clone_root()
PYTHON = str(ROOT / ".venv" / "bin" / "python")


def _free_ports() -> dict[str, str]:
    names = list(Ports.model_fields)
    return {
        f"MAILSLICE_STACK_{name.upper()}": str(port)
        for name, port in zip(names, free_ports(len(names)), strict=True)
    }


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MAILSLICE_") and name != "MAIL"
    }
    return {
        **clean,
        **_free_ports(),
        "MAILSLICE_STACK_STATE": str(tmp_path / "state"),
        "MAILSLICE_STACK_TEST_STATE": str(tmp_path / "test"),
        "MAILSLICE_STACK_CASSANDRA_HEAP": "800m",
    }


def _local(
    command: str, environment: Mapping[str, str], seconds: int = 600
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "stack", command],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def test_help_lists_every_target() -> None:
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = re.search(
        r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert targets is not None
    assert re.findall(r"^ {2}make (\w+)", shown, re.MULTILINE) == targets.group(1).split()


def test_a_taken_port_is_one_line_and_nothing_is_started(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(environment["MAILSLICE_STACK_S3_PORT"])))
        taken.listen()
        done = _local("run", environment)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"run: port {environment['MAILSLICE_STACK_S3_PORT']} of s3 is taken by ")
    assert line.endswith("Remedy: end that, or set MAILSLICE_STACK_S3_PORT to a free port")
    assert f"(pid {os.getpid()})" in line
    assert _owned(tmp_path / "state") == []


def test_a_source_that_is_not_there_is_said_before_anything_starts(
    environment: dict[str, str], tmp_path: Path
) -> None:
    done = _local("run", {**environment, "MAIL": str(tmp_path / "nothing")})
    assert done.returncode == 1
    assert done.stderr == (
        f"run: MAIL={tmp_path}/nothing: no such file or folder. Remedy: name a folder of "
        ".eml files, an mbox or a Maildir\n"
    )


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("_ended")
def test_make_run_cleans_a_queue_through_airflow_doubles_nothing_and_leaves_nothing(
    environment: dict[str, str], tmp_path: Path
) -> None:
    first = _local("run", environment, 900)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "25 enqueued, 15 drained, 10 in the queue now" in first.stdout
    report = _mailslice(
        environment, tmp_path, "report", "last", "--duty", "queue_cleanup", "--queue", "spool"
    )
    assert report["applied"] == 15
    assert (report["before"]["live"], report["after"]["live"]) == (10, 10)
    assert (report["before"]["dead"], report["after"]["dead"]) == (15, 0)
    assert report["after"]["browseStart"] > report["before"]["browseStart"]
    assert report["after"]["contentStart"] > report["before"]["contentStart"]
    assert report["dagRun"] in first.stdout

    second = _local("run", environment, 600)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "nothing is enqueued twice" in second.stdout
    assert _mailslice(environment, tmp_path, "queue", "size", "spool") == {
        "queue": "spool",
        "size": 10,
    }
    assert _mailslice(environment, tmp_path, "report", "last", "--queue", "spool")["applied"] == 0

    stopped = _local("stop", environment)
    assert stopped.returncode == 0
    assert _owned(tmp_path / "state") == []
    assert _local("clean", environment).returncode == 0
    assert not (tmp_path / "state").exists()


@pytest.fixture
def _ended(environment: dict[str, str]) -> Iterator[None]:
    """Ends the stack after the test, also when pytest is killed."""
    with afterwards([PYTHON, "-m", "stack", "stop"], environment):
        yield


def _mailslice(environment: Mapping[str, str], tmp_path: Path, *words: str) -> dict[str, Any]:
    lines = (tmp_path / "state" / "settings.env").read_text(encoding="utf-8").splitlines()
    settings = dict(line.split("=", 1) for line in lines if line.startswith("MAILSLICE_"))
    clean = {
        name: value for name, value in environment.items() if not name.startswith("MAILSLICE_")
    }
    program = [str(ROOT / ".venv" / "bin" / "mailslice"), *words, "--json"]
    done = subprocess.run(
        program, env={**clean, **settings}, capture_output=True, text=True, check=True, timeout=120
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _owned(state: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(OWNER) == str(state):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
