"""docs/james-read-only.md: its grants, its commands, and that these write nothing.

The accounts of RabbitMQ are real in both tests. A Cassandra that refuses what was not granted takes
long to start: that test is `soak`. s3proxy knows no policies, so the one of S3 is not proved.
"""

from __future__ import annotations

import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import boto3
import pytest
import urllib3
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster as Driver
from cassandra.cluster import NoHostAvailable, Session

from mailslice.model.settings import clone_root
from stack.settings import Profile, stack_settings
from tests.acceptance.command import Cli, Inside
from tests.own_cluster import Cluster
from tests.ports import free_ports

pytestmark = pytest.mark.new_keyspaces

PAGE = (clone_root() / "docs" / "james-read-only.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
ACCOUNTS, LOOK = SECTIONS["2. Three accounts that can only read"], SECTIONS["4. Look"]
MEASURE = SECTIONS["The next step: measure with the duties"]
USER, KEYSPACE, PASSWORD = "mailslice_look", "apache_james", "CHANGE-ME"
MAILS = Path(__file__).parents[2] / "data" / "sample"


def blocks(section: str, language: str = "") -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [text for of, text in fenced if of == language]


def commands(section: str) -> list[list[str]]:
    lines = "".join(blocks(section)).splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("mailslice ")]


def statements(section: str) -> list[str]:
    return [one.strip() for one in "".join(blocks(section, "cql")).split(";") if one.strip()]


class Broker:
    """The management API of the test's broker, as an administrator."""

    def __init__(self, env: Mapping[str, str]) -> None:
        url = urlsplit(env["MAILSLICE_RABBITMQ_MANAGEMENT_URL"])
        self._url = f"{url.scheme}://{url.hostname}:{url.port}/api"
        self._headers = urllib3.make_headers(basic_auth=f"{url.username}:{url.password}")
        self.vhost = urlsplit(env["MAILSLICE_RABBITMQ_URL"]).path.lstrip("/")

    def ask(self, method: str, path: str, body: object = None) -> Any:
        answer = urllib3.request(method, f"{self._url}/{path}", headers=self._headers, json=body)
        assert answer.status < 300, (method, path, answer.status, answer.data)
        return answer.json() if answer.data else None

    def grant(self, user: str) -> None:
        """What the page's rabbitmqctl lines do, for this user in this vhost."""
        [block] = [text for text in blocks(ACCOUNTS) if "rabbitmqctl" in text]
        add, tags, allow = map(shlex.split, block.splitlines())
        assert [add[1], tags[1], allow[1]] == ["add_user", "set_user_tags", "set_permissions"]
        self.ask("PUT", f"users/{user}", {"password": add[3], "tags": tags[3]})
        rights = dict(zip(("configure", "write", "read"), allow[5:], strict=True))
        self.ask("PUT", f"permissions/{self.vhost}/{user}", rights)

    def state(self) -> object:
        names = "name,arguments,durable,policy"
        queues = self.ask("GET", f"queues/{self.vhost}?columns={names},messages")
        exchanges = self.ask("GET", f"exchanges/{self.vhost}?columns={names}")
        return (
            sorted(queues, key=lambda queue: queue["name"]),
            sorted(exchanges, key=lambda exchange: exchange["name"]),
            self.ask("GET", f"bindings/{self.vhost}"),
        )


def as_user(env: Mapping[str, str], user: str) -> dict[str, str]:
    """The broker's two URLs with this user in place of the administrator."""
    names = ("MAILSLICE_RABBITMQ_URL", "MAILSLICE_RABBITMQ_MANAGEMENT_URL")
    parts = {name: urlsplit(env[name]) for name in names}
    login = f"{user}:{quote(PASSWORD)}"
    return {
        name: urlunsplit(url._replace(netloc=f"{login}@{url.hostname}:{url.port}"))
        for name, url in parts.items()
    }


def rows(session: Session, keyspace: str) -> dict[str, list[str]]:
    """Every row of every table of a keyspace."""
    query = f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'"
    return {
        name: sorted(map(repr, session.execute(f"SELECT * FROM {keyspace}.{name}")))
        for (name,) in sorted(map(tuple, session.execute(query)))
    }


def keyspaces(session: Session) -> set[str]:
    return {
        name for (name,) in session.execute("SELECT keyspace_name FROM system_schema.keyspaces")
    }


def objects(env: Mapping[str, str]) -> object:
    """Every object of James' bucket, and whether there is an own bucket."""
    s3 = boto3.client(
        "s3",
        endpoint_url=env["MAILSLICE_S3_ENDPOINT"],
        aws_access_key_id=env["MAILSLICE_S3_ACCESS_KEY"],
        aws_secret_access_key=env["MAILSLICE_S3_SECRET_KEY"],
        region_name=env["MAILSLICE_S3_REGION"],
    )
    listed = s3.list_objects_v2(Bucket=env["MAILSLICE_S3_BUCKET"]).get("Contents", [])
    names = {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}
    own = env["MAILSLICE_OWN_BUCKET"] in names
    return own, [(one["Key"], one["ETag"], one["LastModified"]) for one in listed]


@contextmanager
def driver(env: Mapping[str, str], login: tuple[str, str] | None = None) -> Iterator[Session]:
    auth = PlainTextAuthProvider(*login) if login else None
    host, port = env["MAILSLICE_CASSANDRA_CONTACT_POINTS"], int(env["MAILSLICE_CASSANDRA_PORT"])
    cluster = Driver(
        [host], port=port, auth_provider=auth, connect_timeout=30, control_connection_timeout=30
    )
    try:
        session = cluster.connect()
        session.default_timeout = 60
        yield session
    finally:
        cluster.shutdown()


def fill(env: Mapping[str, str]) -> None:
    """A James at work: mails that wait, mails that are done, one dead letter."""
    cli = Cli(env).inside()
    cli("queue", "create", "spool")
    cli("mail", "enqueue", "spool", *sorted(MAILS.glob("0*.eml")))
    cli("worker", "drain", "spool", "--max", "3")
    cli("worker", "drain", "spool", "--max", "1", "--outcome", "reject")


def settled(state: Callable[[], Any]) -> Any:
    """The broker's figures are up to 5 s late."""
    before, since = state(), time.monotonic()
    while time.monotonic() - since < 6:
        time.sleep(0.5)
        if (now := state()) != before:
            before, since = now, time.monotonic()
    return before


@pytest.fixture
def account(fresh: Any) -> Iterator[str]:
    """An account of RabbitMQ with the page's rights."""
    broker, user = Broker(fresh.env), f"look-{uuid.uuid4().hex[:8]}"
    broker.grant(user)
    yield user
    broker.ask("DELETE", f"users/{user}")


def read_everything(cli: Inside) -> dict[str, list[dict[str, Any]]]:
    """The page's commands; each one's lines of JSON."""
    return {" ".join(words[:2]): cli.json(*words) for words in commands(LOOK)}


def test_the_commands_of_the_page_write_nothing(fresh: Any, account: str, tmp_path: Path) -> None:
    fill(fresh.env)
    suffix = uuid.uuid4().hex[:8]
    own = {
        "MAILSLICE_OWN_KEYSPACE": f"never_{suffix}",
        "MAILSLICE_OWN_BUCKET": f"never-{suffix}",
        "MAILSLICE_ARTIFACTS": str(tmp_path / "never"),
    }
    env = {**fresh.env, **own, **as_user(fresh.env, account)}
    broker, keyspace = Broker(fresh.env), env["MAILSLICE_CASSANDRA_KEYSPACE"]
    with driver(env) as session:
        before = settled(broker.state), rows(session, keyspace), objects(env)
        answers = read_everything(Cli(env).inside())
        shown = answers["queue browse"][0]
        Cli(env).inside()("mail", "show", "spool", "--id", shown["enqueueId"], "--raw")
        Cli(env).inside()("stuck", "list", "spool")
        Cli(env).inside()("report", "list")
        assert (settled(broker.state), rows(session, keyspace), objects(env)) == before
        assert own["MAILSLICE_OWN_KEYSPACE"] not in keyspaces(session)
    assert before[2][0] is False
    assert not (tmp_path / "never").exists()
    assert answers["queue size"] == [{"queue": "spool", "size": 6}]
    assert answers["config check"][0]["verdict"] == "same"
    assert {row["content"] for row in answers["queue browse"]} == {"present"}
    assert sum(row["dead"] for row in answers["queue slices"]) == 3
    assert [row["problems"] for row in answers["worker top"]] == [["no consumers"]] or answers


@pytest.mark.parametrize("table", ["v3", "v4"])
def test_the_duties_of_the_page_make_no_table_of_james(
    fresh: Any, account: str, tmp_path: Path, table: str
) -> None:
    """James 3.5 and 3.6 have V3, and no contentstart."""
    fill({**fresh.env, "MAILSLICE_QUEUE_TABLE": "v3"})
    artifacts = {"MAILSLICE_ARTIFACTS": str(tmp_path), "MAILSLICE_QUEUE_TABLE": table}
    env = {**fresh.env, **artifacts, **as_user(fresh.env, account)}
    broker, keyspace = Broker(fresh.env), env["MAILSLICE_CASSANDRA_KEYSPACE"]
    with driver(env) as session:
        session.execute(f"DROP TABLE {keyspace}.contentstart")
        before = settled(broker.state), rows(session, keyspace), objects(env)
        for words in commands(MEASURE):
            Cli(env).inside()(*words)
        assert {*rows(session, keyspace)}.isdisjoint({"contentstart", "enqueuedmailsv4"})
        assert (settled(broker.state), rows(session, keyspace), objects(env)) == before


def test_the_account_of_rabbitmq_may_neither_consume_nor_publish(fresh: Any, account: str) -> None:
    fill(fresh.env)
    cli = Cli({**fresh.env, **as_user(fresh.env, account)}).inside()
    for words in (
        ("queue", "dead", "spool"),
        ("worker", "drain", "spool", "--max", "1"),
        ("queue", "create", "other"),
    ):
        answer = cli(*words, code=2)
        assert account in answer.err
        assert PASSWORD not in answer.err


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[dict[str, str]]:
    """MAILSLICE_* of a Cassandra of its own that refuses what was not granted."""
    port, storage, jmx = free_ports(3)
    environ = {
        "MAILSLICE_STACK_TEST_STATE": str(tmp_path / "cassandra"),
        "MAILSLICE_STACK_TEST_CASSANDRA_PORT": str(port),
        "MAILSLICE_STACK_TEST_CASSANDRA_STORAGE_PORT": str(storage),
        "MAILSLICE_STACK_TEST_CASSANDRA_JMX_PORT": str(jmx),
        "MAILSLICE_STACK_CASSANDRA_HEAP": "450m",
        "MAILSLICE_STACK_START_TIMEOUT": "300",
    }
    with Cluster(stack_settings(Profile.TEST, environ), 1, guarded=True) as cluster:
        yield {
            **cluster.settings(),
            "MAILSLICE_CASSANDRA_KEYSPACE": KEYSPACE,
            "MAILSLICE_OWN_KEYSPACE": "mailslice",
        }


@contextmanager
def administrator(env: Mapping[str, str]) -> Iterator[Session]:
    """The first role is made some seconds after the node is up."""
    for _ in range(60):
        try:
            with driver(env, ("cassandra", "cassandra")) as session:
                yield session
                return
        except NoHostAvailable:
            time.sleep(1)
    raise AssertionError("Cassandra made no first role")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_page_goes_through_with_its_grants(
    fresh: Any, guarded: dict[str, str], account: str, tmp_path: Path
) -> None:
    env = {**fresh.env, **guarded, "MAILSLICE_ARTIFACTS": str(tmp_path / "artifacts")}
    login = {
        "MAILSLICE_CASSANDRA_USERNAME": "cassandra",
        "MAILSLICE_CASSANDRA_PASSWORD": "cassandra",
    }
    broker = Broker(fresh.env)
    with administrator(env) as session:
        one_copy = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {one_copy}")
        fill({**env, **login})
        session.execute("DROP KEYSPACE IF EXISTS mailslice")
        for statement in statements(ACCOUNTS):
            session.execute(statement)
        eyes = {"MAILSLICE_CASSANDRA_USERNAME": USER, "MAILSLICE_CASSANDRA_PASSWORD": PASSWORD}
        cli = Cli({**env, **eyes, **as_user(fresh.env, account)}).inside()

        before = settled(broker.state), rows(session, KEYSPACE), objects(env)
        answers = read_everything(cli)
        assert answers["queue size"] == [{"queue": "spool", "size": 6}]
        assert keyspaces(session).isdisjoint({"mailslice"})
        for words in (
            ("queue", "clear", "spool", "--yes"),
            ("duty", "run", "queue_size", "--queue", "spool", "--dry-run"),
        ):
            refusal = cli(*words, code=2).err
            assert "MAILSLICE_CASSANDRA_USERNAME" in refusal
            assert "lacks a right" in refusal
            assert PASSWORD not in refusal
        assert (settled(broker.state), rows(session, KEYSPACE), objects(env)) == before

        for statement in statements(MEASURE):
            session.execute(statement)
        for words in commands(MEASURE):
            cli(*words)
        assert {row["duty"] for row in cli.json("report", "list")} == {"queue_size", "queue_audit"}
        assert (settled(broker.state), rows(session, KEYSPACE), objects(env)) == before
