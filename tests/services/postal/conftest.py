"""`postal`: a fresh Postal with two servers, on a MariaDB that many tests share.

The MariaDB is that of the stack, which MAILSLICE_TEST_SETTINGS names. MAILSLICE_TEST_MARIADB_PORT
selects another one (root, no password).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mailslice.checks import gate
from mailslice.model.mariadb_url import MariaDbUrl
from mailslice.model.settings import Settings, clone_root, load_settings, read_env_file
from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin
from mailslice.testing.postal.mails import PostalMails
from mailslice.testing.postal.schema import Version
from stack.mariadb import answers_mariadb, installation
from stack.settings import Profile, stack_settings
from tests.acceptance.command import Cli
from tests.conftest import Fresh
from tests.ports import free_port
from tests.services.duties.running import judged

PORT = "MAILSLICE_TEST_MARIADB_PORT"


@pytest.fixture
def real_gate() -> None:
    """Makes a test evaluate gates by Great Expectations."""


@pytest.fixture(autouse=True)
def _gates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates of runs in this process use plain Python, which saves a second each."""
    if "real_gate" not in request.fixturenames:
        monkeypatch.setattr(gate, "evaluate", judged)


def judged_cli(env: Fresh) -> Cli:
    """Runs commands in processes of their own, with gates that plain Python evaluates."""
    root = clone_root()
    program = (sys.executable, "-m", "tests.services.postal.judged_cli")
    return Cli({**env.env, "PYTHONPATH": f"{root / 'include'}:{root}"}, program)


@pytest.fixture(scope="session")
def mariadb() -> MariaDbLogin:
    """The root login of the shared MariaDB. Without one, skips; fails if services are required."""
    file = Path(os.environ.get("MAILSLICE_TEST_SETTINGS", "/nonexistent"))
    port = os.environ.get(PORT) or (read_env_file(file).get(PORT) if file.is_file() else None)
    if port:
        return MariaDbLogin(int(port))
    message = f"no MariaDB is up ({PORT} is not set); `make test` starts it"
    if os.environ.get("MAILSLICE_REQUIRE_SERVICES") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def make_mariadb(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., MariaDbLogin]]:
    """A function that starts one more MariaDB with these options, in 2 s."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> MariaDbLogin:
        folder, port = tmp_path_factory.mktemp("mariadb"), free_port()
        server = installation(stack_settings(Profile.TEST).sizes.cache)
        with (folder / "log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    server.command(folder, port, *options),
                    env={**os.environ, **server.environment},
                    stdout=log,
                    stderr=log,
                )
            )
        deadline = time.monotonic() + 60
        while why := answers_mariadb(port):
            assert time.monotonic() < deadline, why
            assert processes[-1].poll() is None, (folder / "log").read_text()[-500:]
            time.sleep(0.1)
        return MariaDbLogin(port)

    yield start
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(30)


@pytest.fixture(scope="session")
def second_mariadb(make_mariadb: Callable[..., MariaDbLogin]) -> MariaDbLogin:
    """Another MariaDB, for message databases on another server than the main database."""
    return make_mariadb()


@pytest.fixture
def mariadb_root(mariadb: MariaDbLogin) -> Callable[..., MariaDbUrl]:
    """A function that returns the administrator's URL; keywords change its parts."""

    def address(**changes: Any) -> MariaDbUrl:
        parts = {"host": mariadb.host, "port": mariadb.port, "user": mariadb.user, "password": ""}
        return MariaDbUrl(**{**parts, "database": "", **changes})

    return address


@pytest.fixture
def make_postal(mariadb: MariaDbLogin) -> Iterator[Callable[..., FreshPostal]]:
    """A function that creates one more Postal of this release with so many servers."""
    made: list[FreshPostal] = []

    def make(
        version: Version = Version.V3_3, servers: int = 2, **options: MariaDbLogin
    ) -> FreshPostal:
        databases = FreshPostal(mariadb, f"t{uuid.uuid4().hex[:12]}", version, **options)
        made.append(databases)
        databases.install()
        for _ in range(servers):
            databases.add_server()
        return databases

    yield make
    for databases in made:
        databases.drop()


@pytest.fixture
def postal(make_postal: Callable[..., FreshPostal]) -> FreshPostal:
    """Postal 3.3 with the servers 1 and 2."""
    return make_postal()


@pytest.fixture
def postal_2(make_postal: Callable[..., FreshPostal]) -> FreshPostal:
    """Postal 2.3 with the servers 1 and 2."""
    return make_postal(Version.V2_3)


@pytest.fixture
def mails(postal: FreshPostal) -> PostalMails:
    """Writes mails into `postal`."""
    return PostalMails(postal)


@pytest.fixture
def guest(postal: FreshPostal) -> MariaDbLogin:
    """A user with the least privileges in `postal`."""
    return postal.guest()


@pytest.fixture
def postal_env(postal: FreshPostal, guest: MariaDbLogin, tmp_path: Path) -> Fresh:
    """The guest's settings, without Cassandra: `.settings` for this process, `.environ` for child
    processes, `.but(NAME=value)` with changes.
    """
    artifacts = {"MAILSLICE_ARTIFACTS": str(tmp_path / "artifacts")}
    return Fresh({**postal.settings(guest), **artifacts})


@pytest.fixture
def postal_settings(postal_env: Fresh) -> Settings:
    """The settings of `postal_env`, loaded."""
    return load_settings(postal_env.env, state_file=Path("/nonexistent"))
