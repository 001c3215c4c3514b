"""Services of docker-compose.yaml and pods of deploy/kubernetes as processes: their command, their
environment, their health check, in the environment that the image's own steps install.
"""

from __future__ import annotations

import json
import os
import re
import signal
import smtplib
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import boto3
import psutil
import pytest
import yaml
from botocore.config import Config
from botocore.exceptions import ClientError

from mailslice.maintenance.artifacts import artifacts
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores import open_stores
from stack.parts import java_home, part
from stack.s3 import TUNED_THREADS
from stack.settings import Profile, stack_settings
from tests.conftest import Fresh
from tests.ports import free_port
from tests.services.compose.images import ROOT, Builder
from tests.unit.deploy.kustomize import build

pytestmark = pytest.mark.new_keyspaces

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(
    (ROOT / "docker-compose.yaml").read_text(encoding="utf-8")
)["services"]
AWKWARD = "p@ss/w#rd %2F:?&=$HOME'\"\\{}"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """The worker image's environment."""
    builder = Builder(tmp_path_factory.mktemp("image"))
    builder.build("worker-venv")
    return builder


@pytest.fixture
def broker_user(fresh: Fresh) -> Iterator[str]:
    """A user of the broker, with an awkward password, for the vhost of `fresh`."""
    name = f"compose-{uuid4().hex[:8]}"
    url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_MANAGEMENT_URL"])
    login = b64encode(f"{url.username}:{url.password}".encode()).decode()

    def ask(method: str, path: str, body: object = None) -> None:
        request = urllib.request.Request(
            f"http://{url.hostname}:{url.port}/api/{path}",
            data=json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10).close()

    ask("PUT", f"users/{name}", {"password": AWKWARD, "tags": "administrator"})
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    vhost = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"]).path.removeprefix("/")
    ask("PUT", f"permissions/{vhost}/{name}", rights)
    yield name
    ask("DELETE", f"users/{name}")


class Here:
    """Names of the compose file and what they are on this machine."""

    def __init__(self, fresh: Fresh, user: str, folder: Path) -> None:
        env = fresh.env
        self.fresh = fresh
        self.folder = folder
        amqp, web = (
            urlsplit(env[f"MAILSLICE_RABBITMQ_{name}"]) for name in ("URL", "MANAGEMENT_URL")
        )
        self.ports = {name: {"8000": free_port(), "2525": free_port()} for name in SERVICES}
        """Of each service, as each container has its own."""
        self.given = {
            "MAILSLICE_CASSANDRA_CONTACT_POINTS": env["MAILSLICE_CASSANDRA_CONTACT_POINTS"],
            "MAILSLICE_CASSANDRA_PORT": env["MAILSLICE_CASSANDRA_PORT"],
            "MAILSLICE_RABBITMQ_URL": f"amqp://{amqp.hostname}:{amqp.port}{amqp.path}",
            "MAILSLICE_RABBITMQ_MANAGEMENT_URL": f"http://{web.hostname}:{web.port}",
            "MAILSLICE_RABBITMQ_USERNAME": user,
            "MAILSLICE_S3_ENDPOINT": env["MAILSLICE_S3_ENDPOINT"],
            "MAILSLICE_S3_ACCESS_KEY": env["MAILSLICE_S3_ACCESS_KEY"],
        }
        own = ("CASSANDRA_KEYSPACE", "OWN_KEYSPACE", "S3_BUCKET", "OWN_BUCKET")
        self.kept = {f"MAILSLICE_{name}": env[f"MAILSLICE_{name}"] for name in own}
        self.secrets = folder / "secrets"
        self.secrets.mkdir()
        for name, value in {
            "rabbitmq_password": AWKWARD,
            "s3_secret_key": env["MAILSLICE_S3_SECRET_KEY"],
            "smtp_password": AWKWARD,
            "airflow_admin_password": AWKWARD,
            "airflow_fernet_key": "",
            "airflow_jwt_secret": AWKWARD,
            "postgres_password": AWKWARD,
        }.items():
            (self.secrets / name).write_text(value + "\n", encoding="utf-8")
        for name in ("artifacts", "maildir"):
            (folder / name).mkdir(exist_ok=True)

    def word(self, service: str, text: str) -> str:
        """A word of the file, with this machine's folders and the service's ports here."""
        ports = self.ports[service]
        text = text.replace("/run/secrets", str(self.secrets))
        text = re.sub(r"\b(8000|2525)\b", lambda match: str(ports[match[0]]), text)
        return re.sub(r"^/(artifacts|maildir)$", rf"{self.folder}/\1", text)

    def environment(self, service: str) -> dict[str, str]:
        """The service's environment, and no variable besides but where its test data is."""
        mine = {
            name: self.given.get(name, self.word(service, value))
            for name, value in SERVICES[service]["environment"].items()
        }
        return {**mine, **self.kept, "HOME": str(self.folder)}

    def command(self, service: str) -> list[str]:
        return [self.word(service, word) for word in SERVICES[service]["command"]]

    def healthy(self, service: str, image: Builder) -> bool:
        """Whether the service's own health check succeeds."""
        kind, *words = SERVICES[service]["healthcheck"]["test"]
        assert kind == "CMD"
        done = subprocess.run(
            [self.word(service, word) for word in words],
            env={"PATH": image.path},
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def ready(self, service: str) -> bool:
        """Whether /readyz of the service answers 200: from then on its own port is open."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ports[service]['8000']}/readyz", timeout=10
            ) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return False


@pytest.fixture
def here(fresh: Fresh, broker_user: str, tmp_path: Path) -> Here:
    return Here(fresh, broker_user, tmp_path)


def until(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "too late"
        time.sleep(0.2)


def once(image: Builder, words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(image.venv / "bin" / "mailslice"), *words],
        env={"PATH": image.path, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@contextmanager
def running(here: Here, service: str, image: Builder) -> Iterator[subprocess.Popen[bytes]]:
    """The service, healthy; ended as Compose ends it: within its grace, with status 0."""
    log = here.folder / f"{service}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(image.venv / "bin" / "mailslice"), *here.command(service)],
            env={"PATH": image.path, **here.environment(service)},
            cwd=here.folder,
            stdout=stream,
            stderr=stream,
        )
        try:
            until(lambda: here.healthy(service, image) or process.poll() is not None)
            assert process.poll() is None, log.read_text(encoding="utf-8")
            yield process
            process.send_signal(signal.SIGTERM)
            grace = int(SERVICES[service]["stop_grace_period"].removesuffix("s"))
            assert process.wait(grace) == 0, log.read_text(encoding="utf-8")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def test_the_worker_image_has_what_the_hot_path_needs_and_no_more(image: Builder) -> None:
    packages = {
        path.name.partition("-")[0]
        for path in image.venv.glob("lib/python*/site-packages/*.dist-info")
    }
    assert {"mailslice", "pika", "cassandra_driver", "obstore"} <= packages
    heavy = {"pyarrow", "pyspark", "apache_airflow", "great_expectations", "pandas", "matplotlib"}
    tools = {"pytest", "mypy", "ruff", "hypothesis", "uv", "supervisor", "mkdocs"}
    assert packages.isdisjoint(heavy | tools)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_images_are_as_large_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    for name in ("worker", "duties", "airflow"):
        builder = Builder(tmp_path / name, bytecode=True)
        builder.build(f"{name}-venv")
        said = re.search(rf"\| `{name}` \|.*\| ([\d,]+) MiB \|", page)
        assert said is not None
        assert builder.mebibytes() == pytest.approx(int(said[1].replace(",", "")), rel=0.1), name
        words = {"worker": "queue", "duties": "duty", "airflow": "airflow"}
        done = once(builder, [words[name], "--help"], {})
        assert done.returncode == 0, done.stderr


def test_queue_init_creates_the_queue_and_keeps_who_did_it_without_pyarrow(
    image: Builder, here: Here
) -> None:
    done = once(image, here.command("queue-init"), here.environment("queue-init"))
    assert (done.returncode, done.stderr) == (0, "")
    (kept,) = (here.folder / "artifacts" / "decisions").glob("*/*.json")
    assert json.loads(kept.read_text(encoding="utf-8"))["action"] == "queue create"

    location = f"s3a://{here.fresh.settings.own.bucket}/artifacts"
    env = {**here.environment("queue-init"), "MAILSLICE_ARTIFACTS": location}
    done = once(image, ["queue", "create", "outgoing", "--reason=compose"], env)
    assert (done.returncode, done.stderr) == (0, "")
    in_bucket = artifacts(here.fresh.but(MAILSLICE_ARTIFACTS=location).settings)
    (name,) = in_bucket.files("decisions")
    assert json.loads(in_bucket.read(name) or b"")["reason"] == "compose"


def test_a_mail_goes_in_by_smtp_and_comes_out_in_the_maildir(image: Builder, here: Here) -> None:
    done = once(image, here.command("queue-init"), here.environment("queue-init"))
    assert done.returncode == 0, done.stderr
    with (
        running(here, "mailslice-worker", image),
        running(here, "mailslice-smtp-in", image),
    ):
        port = here.ports["mailslice-smtp-in"]["2525"]
        until(lambda: here.ready("mailslice-smtp-in"))
        with smtplib.SMTP("127.0.0.1", port, timeout=30) as client:
            client.login("mailslice", AWKWARD)
            client.sendmail(
                "me@example.com", ["you@example.org"], b"Subject: compose\r\n\r\nhello\r\n"
            )
        until(lambda: list((here.folder / "maildir").glob("**/new/*")))
        with (
            smtplib.SMTP("127.0.0.1", port, timeout=30) as stranger,
            pytest.raises(smtplib.SMTPAuthenticationError),
        ):
            stranger.login("mailslice", "wrong")
    assert AWKWARD not in "".join(
        path.read_text(encoding="utf-8") for path in here.folder.glob("*.log")
    )


def test_the_s3_server_takes_its_secret_from_the_file_and_shows_it_nowhere(tmp_path: Path) -> None:
    stack = stack_settings(Profile.TEST)
    home, port = tmp_path / "s3proxy", free_port()
    home.mkdir()
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(home / "s3proxy", "w") as jar:
        jars = [path.as_uri() for path in sorted(part("s3proxy", stack.sizes).glob("*.jar"))]
        entry = f"Class-Path: {' '.join(jars)}"
        folded = "\r\n ".join(entry[at : at + 70] for at in range(0, len(entry), 70))
        jar.writestr(
            "META-INF/MANIFEST.MF",
            f"Manifest-Version: 1.0\r\nMain-Class: org.gaul.s3proxy.Main\r\n{folded}\r\n\r\n",
        )
    conf = (ROOT / "docker" / "s3proxy.conf").read_text(encoding="utf-8")
    assert f"max-threads={TUNED_THREADS}" in conf
    conf = conf.replace("0.0.0.0:9000", f"127.0.0.1:{port}").replace("/data", f"{tmp_path}/data")
    (home / "s3proxy.conf").write_text(conf, encoding="utf-8")
    secret = " " + AWKWARD
    (tmp_path / "secret").write_text(secret + "\n", encoding="utf-8")
    process = subprocess.Popen(
        ["bash", str(ROOT / "docker" / "s3.sh")],
        env={
            "PATH": f"{java_home()}/bin:{os.environ['PATH']}",
            "S3PROXY_HOME": str(home),
            "SECRET": str(tmp_path / "secret"),
            "PROPERTIES": str(tmp_path / "s3proxy.properties"),
            "JAVA_OPTS": "-Xmx256m -XX:TieredStopAtLevel=1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        kind, *check = SERVICES["s3"]["healthcheck"]["test"]
        words = [word.replace("9000", str(port)) for word in check]

        def healthy() -> bool:
            return subprocess.run(words, capture_output=True, check=False).returncode == 0

        until(lambda: healthy() or process.poll() is not None)
        assert (kind, process.poll()) == ("CMD", None)

        def client(key: str) -> Any:
            return boto3.client(
                "s3",
                endpoint_url=f"http://127.0.0.1:{port}",
                aws_access_key_id="mailslice",
                aws_secret_access_key=key,
                region_name="us-east-1",
                config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
            )

        client(secret).create_bucket(Bucket="james")
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            client(secret.strip()).list_buckets()
        for file in ("cmdline", "environ"):
            shown = Path(f"/proc/{process.pid}/{file}").read_bytes()
            assert AWKWARD.encode() not in shown
        properties = tmp_path / "s3proxy.properties"
        assert properties.stat().st_mode & 0o077 == 0
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.timeout(300)
def test_airflow_init_makes_the_database_the_pool_and_the_login(tmp_path: Path, here: Here) -> None:
    """On SQLite: everything else is as in the file."""
    logins = tmp_path / "logins" / "passwords.json"
    logins.parent.mkdir()
    env = {
        **here.environment("airflow-init"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(logins),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(tmp_path),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(tmp_path / "logs"),
    }
    del env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD"]
    program, script = SERVICES["airflow-init"]["command"]
    assert program == "python"
    for slots in (1, 3):
        done = subprocess.run(
            [sys.executable, script.replace("/opt/mailslice", str(ROOT))],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(logins.read_text(encoding="utf-8")) == {"admin": AWKWARD}
        assert logins.stat().st_mode & 0o077 == 0
        with closing(sqlite3.connect(tmp_path / "airflow.db")) as database, database:
            pools = dict(database.execute("select pool, slots from slot_pool").fetchall())
            assert pools["spark"] == slots, "a person has raised it"
            database.execute("update slot_pool set slots = 3 where pool = 'spark'")


def pod(name: str, overlay: str = "duties") -> dict[str, Any]:
    """The container of a CronJob or Deployment."""
    (one,) = (
        one
        for one in build(ROOT / "deploy" / "kubernetes" / "overlays" / overlay)
        if one["metadata"]["name"] == name and one["kind"] in {"CronJob", "Deployment"}
    )
    spec = one["spec"]["jobTemplate"]["spec"] if one["kind"] == "CronJob" else one["spec"]
    (only,) = spec["template"]["spec"]["containers"]
    return dict(only)


def duty_pod_environment(here: Here, name: str) -> dict[str, str]:
    return {
        **here.environment("queue-init"),
        **{one["name"]: one["value"] for one in pod(name)["env"] if one["name"] != "HOME"},
        "MAILSLICE_ARTIFACTS": f"s3a://{here.fresh.settings.own.bucket}/artifacts",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GX_ANALYTICS_ENABLED": "false",
    }


def page(port: int, name: str) -> str:
    """A page of the exporter; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_the_exporter_of_compose_serves_figures_of_every_queue(here: Here, image: Builder) -> None:
    done = once(image, here.command("queue-init"), here.environment("queue-init"))
    assert done.returncode == 0, done.stderr
    with running(here, "mailslice-exporter", image):
        port = here.ports["mailslice-exporter"]["8000"]
        until(lambda: 'queue="spool"' in page(port, "metrics"))


def test_the_exporter_of_kubernetes_serves_figures_of_every_queue(
    here: Here, image: Builder
) -> None:
    done = once(image, here.command("queue-init"), here.environment("queue-init"))
    assert done.returncode == 0, done.stderr
    port = free_port()
    words = [
        one.replace("8000", str(port)) for one in pod("mailslice-exporter", "exporter")["args"]
    ]
    env = {"PATH": image.path, **here.environment("queue-init")}
    process = subprocess.Popen([str(image.venv / "bin" / "mailslice"), *words], env=env)

    try:
        until(lambda: 'mailslice_exporter_up{store="cassandra"} 1' in page(port, "metrics"))
        until(lambda: 'queue="spool"' in page(port, "metrics"))
        assert json.loads(page(port, "livez")) == {"live": True}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("reclaim", 0, '"freedMib": 0'),
        ("republish-lost", 3, "mailslice duty run queue_audit --queue spool --census"),
        ("migrate-v3-to-v4", 0, '"copied": 0'),
    ],
)
def test_a_duty_that_a_person_starts_says_what_it_would_do(
    here: Here, image: Builder, name: str, code: int, says: str
) -> None:
    done = once(image, here.command("queue-init"), here.environment("queue-init"))
    assert done.returncode == 0, done.stderr
    job = f"mailslice-{name}"
    done = subprocess.run(
        [str(Path(sys.executable).parent / "mailslice"), *pod(job)["args"]],
        env=duty_pod_environment(here, job),
        cwd=here.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr


@pytest.mark.soak
def test_a_duty_of_kubernetes_runs_without_airflow_and_tells_its_alerts(
    here: Here, image: Builder
) -> None:
    done = once(image, here.command("queue-init"), here.environment("queue-init"))
    assert done.returncode == 0, done.stderr
    spec = pod("mailslice-queue-size")
    env = duty_pod_environment(here, "mailslice-queue-size")

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).parent / "mailslice"), *spec["args"]],
            env={**env, **more},
            cwd=here.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    with open_stores(here.fresh.settings) as stores:
        work_queue = RabbitNames(QueueName("spool")).work_queue
        until(lambda: stores.management.depth(work_queue) is not None)
    done = run()
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["duty"], report["queue"], report["size"]) == ("queue_size", "spool", 0)
    assert "0 consumers take mail from the queue, fewer than 1" in done.stderr
    assert "consumers" not in run().stderr, "an alert that goes on is told once"
    away = run(MAILSLICE_CASSANDRA_PORT="9")
    assert away.returncode == 4
    assert away.stderr.count("queue_size, queue spool: Cassandra at") == 1


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_airflows_services_are_healthy_by_their_own_checks(tmp_path: Path, here: Here) -> None:
    """On SQLite. The api-server has another port; each task's log server, too."""
    bin_folder = Path(sys.executable).parent
    port, health = free_port(), free_port()
    env = {
        **here.environment("scheduler"),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "HOSTNAME": os.uname().nodename,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(tmp_path / "passwords.json"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(tmp_path),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(health),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(tmp_path / "logs"),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
    }
    del env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD"]
    script = SERVICES["airflow-init"]["command"][1].replace("/opt/mailslice", str(ROOT))
    subprocess.run([sys.executable, script], env=env, capture_output=True, check=True)
    peaks: dict[str, int] = {}
    with ExitStack() as stack:
        for service in ("api-server", "scheduler", "dag-processor", "triggerer"):
            kind, *check = SERVICES[service]["healthcheck"]["test"]
            words = ["sh", "-c", *check] if kind == "CMD-SHELL" else check
            words = [
                re.sub(r"\b8974\b", str(health), re.sub(r"\b8080\b", str(port), word))
                for word in (text.replace("$$", "$") for text in words)
            ]
            with (tmp_path / f"{service}.log").open("wb") as log:
                command = [str(bin_folder / "airflow"), *SERVICES[service]["command"][1:]]
                process = subprocess.Popen(
                    command, env=env, stdout=log, stderr=log, start_new_session=True
                )
            stack.callback(ended, process)
            until(partial(ended_or_healthy, process, words, env), 240)
            assert process.poll() is None, (tmp_path / f"{service}.log").read_text()
            everyone = [psutil.Process(process.pid)]
            everyone += everyone[0].children(recursive=True)
            peaks[service] = sum(one.memory_info().rss for one in everyone) // 2**20
    for service, peak in peaks.items():
        limit = SERVICES[service]["mem_limit"]
        assert peak < int(limit[:-1]) * {"m": 1, "g": 1024}[limit[-1]], peaks


def ended_or_healthy(
    process: subprocess.Popen[bytes], words: list[str], env: dict[str, str]
) -> bool:
    done = subprocess.run(words, env=env, capture_output=True, check=False)
    return done.returncode == 0 or process.poll() is not None


def ended(process: subprocess.Popen[bytes]) -> None:
    """Its group, as a container ends."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
