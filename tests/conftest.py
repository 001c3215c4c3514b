"""Fixtures of all tiers: `stack` (the running services) and `fresh` (names in them that nobody else
uses).

The addresses of the services are read from the file in MAILSLICE_TEST_SETTINGS, by default from
`.state/test/settings.env`, which `make test` writes.
"""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypothesis
import pytest

from mailslice.model.settings import Settings, clone_root, load_settings, read_env_file
from stack.program import answers_cql, answers_http
from tests.keyspaces import KeyspacePool, Keyspaces
from tests.spark_files import starts_spark

# No test checks the speed of one example: on a machine with three test processes any example may
# take a second.
hypothesis.settings.register_profile(
    "mailslice", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("mailslice")


# Collection creates 8,000 tests and no garbage: the collector would take a third of the CPU.
gc.disable()


def pytest_collection_finish() -> None:
    """Enables the collector, without the tests and modules that stay to the end."""
    gc.freeze()
    gc.enable()


def pytest_configure() -> None:
    """Restores SIGINT. A shell without job control lets background commands ignore it, and their
    children inherit that: tests that interrupt a child would hang.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs long tests first. At the end they would run alone while other processes are idle."""
    items.sort(key=lambda item: not (item.get_closest_marker("waits") or starts_spark(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives all files that start Spark to one process. Tests of other Pythons run without xdist."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.one_spark import OneSpark

    return OneSpark(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escapes output of tests that is not valid UTF-8, as parts of mails are: it must pass from a
    test process to the process that reports.
    """
    report = yield
    report.sections = [(name, _speakable(text)) for name, text in report.sections]
    if (
        report.longrepr is not None
        and not isinstance(report.longrepr, tuple)
        and _speakable(str(report.longrepr)) != str(report.longrepr)
    ):
        report.longrepr = _speakable(str(report.longrepr))
    return report


def _speakable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Fresh:
    """Keyspaces, vhost, buckets and artifacts that no other test uses at the same time.

    The two keyspaces have all tables and no rows. For tests marked `new_keyspaces` they have no
    tables. Vhost and buckets are new.
    """

    env: Mapping[str, str]
    """The MAILSLICE_* variables."""

    @property
    def settings(self) -> Settings:
        return load_settings(self.env, state_file=Path("/nonexistent"))

    @property
    def environ(self) -> dict[str, str]:
        """For a child process: this environment with the MAILSLICE_* variables of `env` only."""
        return {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("MAILSLICE_")
            },
            **self.env,
        }

    def but(self, **changes: str) -> Fresh:
        """A copy with other settings: `fresh.but(MAILSLICE_QUEUE_TABLE="v3")`."""
        return Fresh({**self.env, **changes})


@pytest.fixture(scope="session")
def stack() -> Mapping[str, str]:
    """The MAILSLICE_* variables of the running test services.

    Without services the test skips, or fails if MAILSLICE_REQUIRE_SERVICES=1.
    """
    file = Path(
        os.environ.get("MAILSLICE_TEST_SETTINGS")
        or clone_root() / ".state" / "test" / "settings.env"
    )
    problem = f"{file} is not there" if not file.is_file() else _unanswered(read_env_file(file))
    if problem:
        message = f"the test services are not up ({problem}); `make test` starts them"
        if os.environ.get("MAILSLICE_REQUIRE_SERVICES") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return read_env_file(file)


def _unanswered(env: Mapping[str, str]) -> str | None:
    host = env["MAILSLICE_CASSANDRA_CONTACT_POINTS"].split(",")[0]
    management = urlsplit(env["MAILSLICE_RABBITMQ_MANAGEMENT_URL"])
    auth = (management.username or "", management.password or "")
    return (
        answers_cql(host, int(env["MAILSLICE_CASSANDRA_PORT"]))
        or answers_http(
            f"{management.scheme}://{management.hostname}:{management.port}/api/overview", auth
        )
        or answers_http(env["MAILSLICE_S3_ENDPOINT"] + "/", allowed=(200, 403))
    )


@pytest.fixture(scope="session")
def _tenants(stack: Mapping[str, str]) -> Iterator[_Tenants]:
    tenants = _Tenants(stack)
    yield tenants
    tenants.close()


@pytest.fixture
def any_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers whose clocks are hours off start: it looks as if Cassandra's were off as well."""
    from mailslice.stores.cassandra.session import CassandraSession

    monkeypatch.setattr(CassandraSession, "skew_of", lambda *_: timedelta(0))


@pytest.fixture
def fresh(_tenants: _Tenants, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fresh]:
    """Own keyspaces, vhost and buckets for one test."""
    tenant = _tenants.create(new_keyspaces=_new_keyspaces(request))
    yield Fresh({**tenant, "MAILSLICE_ARTIFACTS": str(tmp_path / "artifacts")})
    _tenants.drop(tenant)


@pytest.fixture(scope="module")
def fresh_module(
    _tenants: _Tenants,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Fresh]:
    """As `fresh`, but one for all tests of a module."""
    tenant = _tenants.create(new_keyspaces=_new_keyspaces(request))
    yield Fresh({**tenant, "MAILSLICE_ARTIFACTS": str(tmp_path_factory.mktemp("artifacts"))})
    _tenants.drop(tenant)


@pytest.fixture(scope="session")
def make_fresh(
    _tenants: _Tenants, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Fresh]]:
    """A function that creates one more `Fresh`. All are dropped at the end of the session."""
    made: list[Mapping[str, str]] = []

    def make(*, new_keyspaces: bool = False) -> Fresh:
        made.append(_tenants.create(new_keyspaces=new_keyspaces))
        return Fresh({**made[-1], "MAILSLICE_ARTIFACTS": str(tmp_path_factory.mktemp("artifacts"))})

    yield make
    for tenant in made:
        _tenants.drop(tenant)


def _new_keyspaces(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("new_keyspaces") is not None


class _Tenants:
    """Creates and drops tenants (keyspaces, vhost, buckets) by own clients, without mailslice.

    Dropping takes a second or two and runs in a thread beside the tests. If the services end with
    the tests, the remaining drops are skipped.
    """

    def __init__(self, stack: Mapping[str, str]) -> None:
        import boto3
        from botocore.config import Config
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import RoundRobinPolicy

        self._stack = stack
        self._dropping = ThreadPoolExecutor(1, thread_name_prefix="drop-tenants")
        self._dropped: list[Future[None]] = []
        profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), request_timeout=60)
        self._cluster = Cluster(
            stack["MAILSLICE_CASSANDRA_CONTACT_POINTS"].split(","),
            port=int(stack["MAILSLICE_CASSANDRA_PORT"]),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
            connect_timeout=30,
            control_connection_timeout=30,
        )
        self._session = self._cluster.connect()
        self._keyspaces = KeyspacePool(self._session, stack)
        self._used: dict[str, Keyspaces] = {}
        self._s3 = boto3.client(
            "s3",
            endpoint_url=stack["MAILSLICE_S3_ENDPOINT"],
            aws_access_key_id=stack["MAILSLICE_S3_ACCESS_KEY"],
            aws_secret_access_key=stack["MAILSLICE_S3_SECRET_KEY"],
            region_name=stack["MAILSLICE_S3_REGION"],
            config=Config(
                request_checksum_calculation="when_required", s3={"addressing_style": "path"}
            ),
        )

    def create(self, *, new_keyspaces: bool = False) -> Mapping[str, str]:
        name = f"t{uuid.uuid4().hex[:12]}"
        keyspaces = self._keyspaces.new() if new_keyspaces else self._keyspaces.take()
        self._used[name] = keyspaces
        kind = os.environ.get("MAILSLICE_TEST_DEFAULT_QUEUE_TYPE")
        self._management("PUT", f"vhosts/{name}", {"defaultqueuetype": kind} if kind else {})
        user = urlsplit(self._stack["MAILSLICE_RABBITMQ_MANAGEMENT_URL"]).username
        self._management(
            "PUT", f"permissions/{name}/{user}", {"configure": ".*", "write": ".*", "read": ".*"}
        )
        for bucket in (name, name + "-own"):
            self._s3.create_bucket(Bucket=bucket)
        url = urlsplit(self._stack["MAILSLICE_RABBITMQ_URL"])
        return {
            **self._stack,
            "MAILSLICE_CASSANDRA_KEYSPACE": keyspaces.both[0],
            "MAILSLICE_OWN_KEYSPACE": keyspaces.both[1],
            "MAILSLICE_RABBITMQ_URL": url._replace(path="/" + name).geturl(),
            "MAILSLICE_S3_BUCKET": name,
            "MAILSLICE_OWN_BUCKET": name + "-own",
        }

    def drop(self, tenant: Mapping[str, str]) -> None:
        name = tenant["MAILSLICE_S3_BUCKET"]
        keyspaces = self._used.pop(name)
        if keyspaces.schema:
            self._keyspaces.expect()
        self._dropped.append(self._dropping.submit(self._drop, name, keyspaces))

    def _drop(self, name: str, keyspaces: Keyspaces) -> None:
        if keyspaces.schema:
            self._keyspaces.release(keyspaces)
        else:
            self._keyspaces.drop(keyspaces)
        self._management("DELETE", f"vhosts/{name}", None)
        for bucket in (name, name + "-own"):
            with suppress(self._s3.exceptions.NoSuchBucket):
                self._empty(bucket)
                self._delete(bucket)

    def close(self) -> None:
        services_end = os.environ.get("MAILSLICE_TEST_SERVICES_END") == "1"
        self._dropping.shutdown(cancel_futures=services_end)
        self._cluster.shutdown()
        for each in self._dropped:
            if not each.cancelled():
                each.result()

    def _delete(self, bucket: str) -> None:
        try:
            self._s3.delete_bucket(Bucket=bucket)
        except self._s3.exceptions.ClientError as error:
            # The test server counts folders that pyarrow left as content, although no listing
            # shows them.
            if error.response["Error"]["Code"] != "BucketNotEmpty" or self._s3.list_objects_v2(
                Bucket=bucket
            ).get("Contents"):
                raise

    def _empty(self, bucket: str) -> None:
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            keys = [{"Key": found["Key"]} for found in page.get("Contents", ())]
            if keys:
                self._s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})

    def _management(self, method: str, path: str, body: object) -> None:
        import json
        import urllib.request
        from base64 import b64encode

        url = urlsplit(self._stack["MAILSLICE_RABBITMQ_MANAGEMENT_URL"])
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{url.scheme}://{url.hostname}:{url.port}/api/{path}", data=data, method=method
        )
        request.add_header("Content-Type", "application/json")
        request.add_header(
            "Authorization",
            "Basic " + b64encode(f"{url.username}:{url.password}".encode()).decode(),
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30):
            pass
