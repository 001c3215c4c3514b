"""Python 3.13, from a newer Debian: the wheel with the extra `worker`, and nothing else of ours.

The wheel is installed from the pins of requirements.txt, into a folder that the other Debian sees.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mailslice.model.settings import clone_root
from stack.bootstrap import network_of_pip
from stack.debian import debian, inside
from stack.settings import Profile, stack_settings
from tests.conftest import Fresh
from tests.versions.tiers import passed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
RELEASE, PYTHON = "trixie", "3.13"
TEST_TOOLS = ("hypothesis", "numpy", "pytest", "pytest-asyncio", "pytest-timeout")
UNIT = ("worker", "worker_process", "codec", "model", "admin", "view", "stores")
OF_311 = (
    "tests/unit/codec/test_reports.py::test_a_sender_that_cannot_stand_in_a_header_is_bad_input"
)
"""Its sender stands in a header here: the email package has mended that."""
NOT_OF_A_WORKER = r"mailslice\.(bench|testing|stores\.mariadb)|stuck_mails_postal"
COMMAND = "from mailslice.cli.main import main; main()"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, its extra `worker`, and pytest."""
    root, folder = clone_root(), tmp_path_factory.mktemp("wheel")
    source, target = folder / "source", folder / "site"
    shutil.copytree(
        root / "include", source / "include", ignore=shutil.ignore_patterns("*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(root / name, source)
    uv = str(Path(sys.executable).with_name("uv"))
    environ = {**os.environ, **network_of_pip(sys.executable)}
    subprocess.run(
        [uv, "build", "-q", "--wheel", "--no-build-isolation", "-o", str(folder), str(source)],
        env={**environ, "VIRTUAL_ENV": sys.prefix},
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    options = ["--target", str(target), "--python-version", PYTHON, "--only-binary", ":all:"]
    pins = ["--constraint", str(root / "requirements.txt")]
    install = [uv, "pip", "install", "-q", *options, *pins, f"{wheel}[worker]", *TEST_TOOLS]
    subprocess.run(install, env=environ, check=True)
    return target


class Python:
    """Python of the other Debian, with the wheel on its path."""

    def __init__(self, site: Path, folder: Path) -> None:
        self._root = debian(RELEASE, stack_settings(Profile.TEST, dict(os.environ)).sizes.cache)
        self._shared = (clone_root(), site.parent, folder)
        self._environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(site)}
        self._environ |= dict.fromkeys(("HOME", "TMPDIR"), str(folder))

    def __call__(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        enter = inside(self._root, self._shared, "env", "-C", str(clone_root()))
        return subprocess.run(
            [*enter, f"python{PYTHON}", *words],
            env={**self._environ, **environ},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def run_tests(self, *arguments: str, **environ: str) -> int:
        """How many tests passed, with the wheel's modules and not the clone's."""
        options = ("-q", "-p", "no:cacheprovider", "-o", "pythonpath=.")
        return passed(self("-m", "pytest", *options, *arguments, **environ))


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Python:
    return Python(site, tmp_path)


def test_the_package_is_the_wheel_and_the_python_is_the_other(python: Python, site: Path) -> None:
    code = "import sys, mailslice.worker as w; print(sys.version_info[:2], w.__file__)"
    assert python("-c", code).stdout.strip() == f"(3, 13) {site}/mailslice/worker/__init__.py"


def test_the_unit_tests_of_what_a_worker_consists_of_pass(python: Python) -> None:
    folders = [f"tests/unit/{name}" for name in UNIT]
    # Tools of a clone are not in the wheel (ADR 75), and MariaDB's client is not in its extra.
    left_out = [
        f"--ignore={file.relative_to(clone_root())}"
        for folder in folders
        for file in sorted((clone_root() / folder).rglob("test_*.py"))
        if re.search(NOT_OF_A_WORKER, file.read_text(encoding="utf-8"))
    ]
    assert len(left_out) < 12
    assert python.run_tests(*folders, *left_out, "--deselect", OF_311) > 500


def test_a_mail_is_enqueued_listed_and_drained(
    python: Python, fresh: Fresh, tmp_path: Path
) -> None:
    def mailslice(*words: str) -> str:
        done = python("-c", COMMAND, *words, **dict(fresh.env))
        assert done.returncode == 0, done.stderr
        return done.stdout

    eml = tmp_path / "a.eml"
    eml.write_bytes(b"Subject: 3.13\r\n\r\nbody\r\n")
    people = ("--sender", "a@example.org", "--recipient", "b@example.net")
    mailslice("queue", "create", "spool")
    mailslice("mail", "enqueue", "spool", str(eml), *people)
    assert '"size": 1' in mailslice("queue", "size", "spool", "--json")
    assert "a@example.org" in mailslice("worker", "drain", "spool", "--json")
    assert '"size": 0' in mailslice("queue", "size", "spool", "--json")


def test_the_tests_of_a_worker_with_real_stores_pass(
    python: Python, stack: Mapping[str, str], tmp_path: Path
) -> None:
    settings = tmp_path / "settings.env"
    settings.write_text("".join(f"{name}={value}\n" for name, value in stack.items()))
    environ = {"MAILSLICE_TEST_SETTINGS": str(settings), "MAILSLICE_REQUIRE_SERVICES": "1"}
    tests = ("test_round_trip", "test_sync_queue", "test_delays")
    files = (f"tests/services/worker/{name}.py" for name in tests)
    assert python.run_tests(*files, **environ) > 40
