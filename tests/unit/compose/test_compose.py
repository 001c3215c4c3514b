"""docker-compose.yaml against the compose schema, against itself, and against the local stack:
versions, ports, settings.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import re
import runpy
import stat
import subprocess
import sys
import tomllib
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from cryptography.fernet import Fernet
from sqlalchemy.engine import make_url

from mailslice import __version__
from mailslice.model.settings import clone_root, load_settings, read_env_file
from mailslice.stores.rabbitmq.connection import broker_address
from mailslice.worker.smtp_server.policy import policy_of
from stack.airflow import SPARK_POOL, airflow_environment
from stack.s3 import TUNED_THREADS
from stack.services import store_settings
from stack.settings import Profile, StackSettings, stack_settings
from tests.unit.compose.stages import bases, stages

ROOT = clone_root()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
STAGES = stages(DOCKERFILE)
AIRFLOW = ("airflow-init", "api-server", "scheduler", "dag-processor", "triggerer")
ONE_SHOT = {"airflow-init", "queue-init"}
MAILSLICE_IMAGES = {"mailslice-airflow", "mailslice-duties", "mailslice-worker"}
PROFILES = {"stores", "worker", "airflow"}
STORES = ("cassandra", "rabbitmq", "s3")
DIFFERENT = {
    # another database, other folders, another machine
    *(
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "AIRFLOW__CORE__DAGS_FOLDER",
        "AIRFLOW__CORE__PLUGINS_FOLDER",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER",
    ),
    *(
        "AIRFLOW__API__HOST",
        "AIRFLOW__API__BASE_URL",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL",
        "AIRFLOW__API_AUTH__JWT_SECRET",
    ),
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE",
}
"""Airflow settings whose values cannot be those of the local stack; they are set in both."""
LOCAL_ONLY = {
    "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT",
    "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT",
}


@pytest.fixture
def stack(tmp_path: Path) -> StackSettings:
    """The run stack with all defaults."""
    return stack_settings(Profile.RUN, {"MAILSLICE_STACK_STATE": str(tmp_path)})


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    text = (
        resources.files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    ).read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def environment(service: str) -> dict[str, str]:
    return dict(SERVICES[service].get("environment", {}))


def without_command(name: str) -> str:
    return name.removesuffix("_CMD")


def mebibytes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "g": 1024}[text[-1]]


def published(service: str) -> dict[int, str]:
    """Container port -> what stands before it."""
    return {
        int(text.rpartition(":")[2]): text.rpartition(":")[0]
        for text in SERVICES[service].get("ports", [])
    }


def default(text: str) -> str:
    """`${NAME:-default}` -> default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_the_file_holds_to_the_compose_schema(schema: dict[str, Any]) -> None:
    jsonschema.validate(COMPOSE, schema)


@pytest.mark.parametrize(
    ("where", "value"),
    [("imagee", "x"), ("ports", {"a": 1}), ("healthcheck", {"retries": [1]}), ("restart", 3)],
)
def test_the_schema_would_see_a_mistake(schema: dict[str, Any], where: str, value: object) -> None:
    broken = copy.deepcopy(COMPOSE)
    broken["services"]["postgres"][where] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def test_every_part_of_the_system_is_there() -> None:
    assert set(SERVICES) == {
        *("postgres", "cassandra", "rabbitmq", "s3", *AIRFLOW, "spark-master", "spark-worker"),
        *("queue-init", "mailslice-worker", "mailslice-smtp-in", "mailslice-exporter"),
    }


def test_stores_have_the_versions_of_the_local_stack_and_a_broker_that_is_supported(
    stack: StackSettings,
) -> None:
    assert SERVICES["cassandra"]["image"] == f"cassandra:{stack.sizes.cassandra_version}"
    assert STAGES["s3"].base == f"andrewgaul/s3proxy:s3proxy-{stack.sizes.s3proxy_version}"
    assert re.fullmatch(r"rabbitmq:4\.\d+\.\d+-management", SERVICES["rabbitmq"]["image"])


def test_ports_on_this_machine_are_those_of_the_local_stack_and_on_loopback(
    stack: StackSettings,
) -> None:
    ports = stack.ports
    expected = {
        ("api-server", 8080): ports.airflow_port,
        ("cassandra", 9042): ports.cassandra_port,
        ("rabbitmq", 5672): ports.rabbitmq_port,
        ("rabbitmq", 15672): ports.rabbitmq_management_port,
        ("s3", 9000): ports.s3_port,
    }
    for (service, inner), port in expected.items():
        assert default(published(service)[inner]) == f"127.0.0.1:{port}"
    for service in SERVICES:
        assert all(text.startswith("127.0.0.1:") for text in published(service).values())


def test_mailslice_is_told_of_the_same_stores_by_the_same_settings(stack: StackSettings) -> None:
    given = {
        *("MAILSLICE_S3_SECRET_KEY_FILE", "MAILSLICE_ARTIFACTS"),
        *("MAILSLICE_RABBITMQ_USERNAME", "MAILSLICE_RABBITMQ_PASSWORD_FILE"),
    }
    wanted = given | set(store_settings(stack)) - {"MAILSLICE_S3_SECRET_KEY"}
    for service, about in SERVICES.items():
        if about["image"].partition(":")[0] in MAILSLICE_IMAGES and service != "spark-master":
            assert wanted <= set(environment(service)), service
            assert (
                environment(service)["MAILSLICE_S3_REGION"]
                == store_settings(stack)["MAILSLICE_S3_REGION"]
            )


AWKWARD = "p@ss/w#rd %2F:ü?&=$HOME'\"\\{}"


def in_container(service: str, secrets: Path) -> dict[str, str]:
    """The environment of a service, its secrets where they are on this machine."""
    return {
        name: default(value).replace("/run/secrets", str(secrets))
        for name, value in environment(service).items()
    }


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    for name in COMPOSE["secrets"]:
        (folder / name).write_text(f"{AWKWARD}{name}\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_the_settings_of_every_service_are_settings_of_mailslice(
    service: str, secrets: Path
) -> None:
    settings = load_settings(in_container(service, secrets), Path("/nonexistent"))
    if "MAILSLICE_S3_ENDPOINT" in environment(service):
        assert settings.s3.secret_key is not None
        assert settings.s3.secret_key.get_secret_value() == f"{AWKWARD}s3_secret_key"
        address = broker_address(settings.rabbitmq)
        assert (address.host, address.user, address.password) == (
            *("rabbitmq", "mailslice"),
            f"{AWKWARD}rabbitmq_password",
        )


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_service_mounts_the_secrets_that_it_reads_and_no_other(service: str) -> None:
    words = [*environment(service).values(), *map(str, SERVICES[service].get("entrypoint", ()))]
    if SERVICES[service].get("build", {}).get("target") == "s3":
        words.append((ROOT / "docker" / "s3.sh").read_text(encoding="utf-8"))
    read = {name for word in words for name in re.findall(r"/run/secrets/(\w+)", word)}
    assert set(SERVICES[service].get("secrets", ())) == read


def test_no_secret_is_in_the_file_or_in_the_example() -> None:
    for service in SERVICES:
        for name, value in environment(service).items():
            if re.search("PASSWORD|SECRET|CREDENTIAL|FERNET|CONN_CMD", name):
                assert re.search(r"(^|\s)/(run/secrets|opt/airflow/logins)/[\w.]+$", value), name
            assert not re.search(r"://[^/]*:[^/]*@", value), name
    example = read_env_file(ROOT / ".env.example")
    assert not [name for name in example if re.search("PASSWORD|SECRET|KEY", name)]


def test_an_exported_env_file_does_not_hinder_the_command_line() -> None:
    example = read_env_file(ROOT / ".env.example")
    load_settings(example, Path("/nonexistent"))
    stack_settings(Profile.RUN, example)


def test_hosts_in_settings_are_services_with_that_port() -> None:
    for service in SERVICES:
        for name, value in environment(service).items():
            if name.startswith("MAILSLICE_"):
                for host, port in re.findall(r"(?:@|//)([a-z0-9-]+):(\d+)", default(value)):
                    assert host in SERVICES, (name, value)
                    assert int(port) in {9000, 5672, 15672, 7077}


def test_each_profile_is_complete_with_what_it_waits_for() -> None:
    for service, about in SERVICES.items():
        assert set(about["profiles"]) <= PROFILES
        for other in about.get("depends_on", {}):
            assert set(about["profiles"]) <= set(SERVICES[other]["profiles"]), (service, other)
    assert {name for name in SERVICES if "stores" in SERVICES[name]["profiles"]} == set(STORES)
    for part in PROFILES:
        assert set(STORES) <= {name for name in SERVICES if part in SERVICES[name]["profiles"]}
    chosen = read_env_file(ROOT / ".env.example")["COMPOSE_PROFILES"].split(",")
    assert {name for name in SERVICES if {*SERVICES[name]["profiles"]} & {*chosen}} == set(SERVICES)


def test_memory_is_limited_and_the_page_says_the_sums() -> None:
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    for part in sorted(PROFILES):
        limits = [
            mebibytes(about["mem_limit"])
            for name, about in SERVICES.items()
            if part in about["profiles"] and name not in ONE_SHOT
        ]
        assert re.search(rf"\| `{part}` \|.*\| {sum(limits) / 1024:.1f} GiB \|", page), part
    for name, words in (("cassandra", "MAX_HEAP_SIZE"), ("s3", "JAVA_OPTS")):
        heap = environment(name)[words].removeprefix("-Xmx")
        assert mebibytes(heap) < mebibytes(SERVICES[name]["mem_limit"])


def test_the_s3_server_and_cassandra_are_as_large_and_as_set_as_the_local_ones(
    stack: StackSettings,
) -> None:
    assert environment("s3")["JAVA_OPTS"] == f"-Xmx{stack.sizes.s3_heap}"
    assert environment("cassandra")["MAX_HEAP_SIZE"] == stack.sizes.cassandra_heap
    local = read_env_file(ROOT / "stack" / "files" / "s3proxy.conf")
    image = read_env_file(ROOT / "docker" / "s3proxy.conf")
    own = {"s3proxy.endpoint", "s3proxy.identity", "jclouds.filesystem.basedir"}
    assert local.pop("s3proxy.credential")
    local["s3proxy.jetty.max-threads"] = str(TUNED_THREADS)
    assert set(image) == set(local)
    assert {name for name in image if image[name] != local[name]} == own
    assert image["s3proxy.identity"] == environment("mailslice-worker")["MAILSLICE_S3_ACCESS_KEY"]


def test_airflow_is_set_as_the_local_one(stack: StackSettings) -> None:
    local = {
        name: value
        for name, value in airflow_environment(stack, {}).items()
        if name.startswith("AIRFLOW__")
    }
    containers = {without_command(name): value for name, value in environment("scheduler").items()}
    assert set(local) - LOCAL_ONLY <= set(containers)
    for name in set(local) - LOCAL_ONLY - DIFFERENT:
        assert containers[name] == local[name], name


def test_all_of_airflow_shares_one_environment_and_so_one_jwt_secret() -> None:
    first = environment(AIRFLOW[0])
    command = first["AIRFLOW__API_AUTH__JWT_SECRET_CMD"]
    assert command == "cat /run/secrets/airflow_jwt_secret"
    for service in AIRFLOW:
        assert environment(service) == first
    assert first["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://api-server:8080/execution/"


def test_spark_is_the_standalone_master_of_this_file() -> None:
    connection = json.loads(environment("scheduler")["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert (connection["host"], connection["port"]) == ("spark://spark-master", 7077)
    master = SERVICES["spark-master"]["command"]
    assert master[master.index("--port") + 1] == "7077"
    assert "spark://spark-master:7077" in SERVICES["spark-worker"]["command"]
    assert environment("scheduler")["MAILSLICE_DUTY_SPARK_MASTER"] == "spark://spark-master:7077"
    assert f'"{SPARK_POOL}"' in (ROOT / "docker" / "airflow_init.py").read_text(encoding="utf-8")


def test_a_plan_that_executors_write_is_where_the_driver_reads() -> None:
    for service in (*AIRFLOW, "spark-worker"):
        assert "artifacts:/artifacts" in SERVICES[service]["volumes"]


def test_every_lasting_service_has_a_health_check_and_comes_back() -> None:
    for service, about in SERVICES.items():
        if service in ONE_SHOT:
            assert about["restart"] == "no"
        else:
            assert about["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL"), service
            assert about["restart"] == "unless-stopped", service


def test_what_is_waited_for_exists_and_can_be_waited_for() -> None:
    for service, about in SERVICES.items():
        for other, how in about.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert how["condition"] == wanted, (service, other)
            assert wanted != "service_healthy" or "healthcheck" in SERVICES[other]


def test_every_volume_is_declared_and_used() -> None:
    used = {
        volume.partition(":")[0]
        for about in SERVICES.values()
        for volume in about.get("volumes", [])
    }
    assert used == set(COMPOSE["volumes"])


def test_variables_of_the_file_are_those_of_the_example() -> None:
    text = (ROOT / "docker-compose.yaml").read_text(encoding="utf-8")
    example = read_env_file(ROOT / ".env.example")
    assert set(re.findall(r"(?<!\$)\$\{(\w+)", text)) == set(example) - {"COMPOSE_PROFILES"}
    for name, value in re.findall(r"\$\{(\w+):-([^}]+)\}", text):
        assert example[name] == value


def test_images_are_pinned() -> None:
    for about in SERVICES.values():
        _, _, tag = about["image"].partition(":")
        assert re.fullmatch(r"\d+\.\d+(\.\d+)?[\w.-]*", tag), about["image"]
    for stage in STAGES.values():
        assert stage.base in STAGES or re.search(r":\S*\d+\.\d+\.\d+", stage.base), stage.base


def test_each_built_image_is_built_once_and_pulled_by_nobody() -> None:
    built = [about for about in SERVICES.values() if "build" in about]
    assert {about["image"] for about in built} == {
        f"mailslice-{about['build']['target']}:{__version__}" for about in built
    }
    assert len({about["image"] for about in built}) == len(built)
    for about in SERVICES.values():
        if about["image"].startswith("mailslice-"):
            # Compose would ask a registry for an image that nobody has published.
            wanted = "build" if "build" in about else "never"
            assert about["pull_policy"] == wanted, about["image"]
    assert {about["build"]["target"] for about in built} <= set(STAGES)
    assert all(about["build"]["dockerfile"] == "docker/Dockerfile" for about in built)


def test_no_image_of_ours_runs_as_root_and_all_share_volumes_by_one_user() -> None:
    for name in ("worker", "duties", "airflow", "s3"):
        assert [line for line in STAGES[name].lines if line.startswith("USER")][-1] == (
            "USER 50000:0"
        ), name


def test_images_have_one_python_and_the_pinned_installer_in_the_tools_alone() -> None:
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    pinned = re.search(r"^uv==(\S+)", pins, re.MULTILINE)
    assert pinned is not None
    assert [name for name, stage in STAGES.items() if stage.base.startswith("python:")] == [
        "python"
    ]
    assert DOCKERFILE.count(f"pip install --no-cache-dir uv=={pinned[1]}\n") == 1
    for name in ("worker", "duties", "airflow"):
        assert {"tools", "worker-venv"}.isdisjoint(bases(STAGES, name)), name


def test_each_image_has_the_extras_that_its_name_says() -> None:
    extras = {
        name: re.findall(r"mailslice\[([\w,]+)\]", "\n".join(stage.lines))
        for name, stage in STAGES.items()
        if name.endswith("-venv")
    }
    assert extras["worker-venv"] == ["worker"]
    assert extras["duties-venv"] == ["duties"]
    assert extras["airflow-venv"] == ["airflow"]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {*chain(*extras.values())} <= set(known["project"]["optional-dependencies"])
    for name in ("worker", "duties", "airflow"):
        assert f"COPY --from={name}-venv /opt/venv /opt/venv" in STAGES[name].lines
    assert "java" not in bases(STAGES, "worker")
    assert all("java" in bases(STAGES, name) for name in ("duties", "airflow"))


def test_everything_that_images_copy_is_sent_to_the_builder() -> None:
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    assert {"tests", "stack", ".git", ".secrets", ".env"}.isdisjoint(kept)
    sources = [
        source
        for stage in STAGES.values()
        for line in stage.lines
        if line.startswith("COPY ") and "--from=" not in line
        for source in line.split()[1:-1]
    ]
    assert sources
    for source in sources:
        assert source.split("/")[0] in kept
        assert (ROOT / source).exists(), source


def test_new_secrets_writes_what_is_missing_or_empty_and_nothing_else(tmp_path: Path) -> None:
    def write() -> list[str]:
        script = [str(ROOT / "docker" / "new-secrets.sh"), str(tmp_path / "s")]
        return subprocess.run(script, check=True, capture_output=True, text=True).stdout.split()

    folder = tmp_path / "s"
    assert len(write()) == 2 * len(COMPOSE["secrets"])
    assert {path.name for path in folder.iterdir()} == set(COMPOSE["secrets"])
    assert {about["file"] for about in COMPOSE["secrets"].values()} == {
        f".secrets/{name}" for name in COMPOSE["secrets"]
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    values = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert len(set(values.values())) == len(values)
    Fernet(values["airflow_fernet_key"])
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}
    (folder / "smtp_password").write_text("mine", encoding="utf-8")
    assert write() == []
    (folder / "s3_secret_key").write_bytes(b"")  # a full disk left it so
    assert write() == ["wrote", str(folder / "s3_secret_key")]
    assert len((folder / "s3_secret_key").read_text(encoding="utf-8")) == 45
    assert (folder / "smtp_password").read_text(encoding="utf-8") == "mine"


def test_airflow_gets_a_database_password_of_any_characters() -> None:
    script = runpy.run_path(str(ROOT / "docker" / "airflow_database.py"))
    assert make_url(script["url"](AWKWARD)).password == AWKWARD


def test_airflow_reads_its_secrets_by_commands(secrets: Path, tmp_path: Path) -> None:
    given = in_container("scheduler", secrets)
    place = str(ROOT / "docker")
    given = {name: value.replace("/opt/mailslice/docker", place) for name, value in given.items()}
    code = """
from airflow.configuration import conf
from sqlalchemy.engine import make_url
print(ascii([make_url(conf.get("database", "sql_alchemy_conn")).password,
             conf.get("api_auth", "jwt_secret"), conf.get("core", "fernet_key")]))
"""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**given, "AIRFLOW_HOME": str(tmp_path), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = ast.literal_eval(done.stdout.splitlines()[-1])
    names = ("postgres_password", "airflow_jwt_secret", "airflow_fernet_key")
    assert [word.rstrip("\n") for word in words] == [f"{AWKWARD}{name}" for name in names]


def test_the_broker_gets_its_password_by_the_environment_of_its_own_process(
    secrets: Path, tmp_path: Path
) -> None:
    server = tmp_path / "docker-entrypoint.sh"
    server.write_text('#!/bin/sh\nprintf "%s|" "$RABBITMQ_DEFAULT_PASS" "$@"\n', encoding="utf-8")
    server.chmod(0o755)
    words = [
        word.replace("$$", "$").replace("/run/secrets", str(secrets))
        for word in SERVICES["rabbitmq"]["entrypoint"]
    ]
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{AWKWARD}rabbitmq_password|rabbitmq-server|"


@pytest.mark.parametrize(
    ("service", "name"),
    [
        ("queue-init", "create"),
        ("mailslice-worker", "run"),
        ("mailslice-smtp-in", "smtp-in"),
        ("mailslice-exporter", "exporter"),
    ],
)
def test_commands_of_the_worker_image_are_commands_of_mailslice(service: str, name: str) -> None:
    import typer

    from mailslice.cli.main import app

    words = SERVICES[service]["command"]
    command: Any = typer.main.get_command(app)
    context: Any = command.make_context("mailslice", [], resilient_parsing=True)
    for word in words:
        sub = command.get_command(context, word) if hasattr(command, "get_command") else None
        if sub is None:
            break
        command = sub
    options = {name for parameter in command.params for name in parameter.opts}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= options
    assert command.name == name


def test_no_edit_of_the_port_line_makes_smtp_in_an_open_relay(secrets: Path) -> None:
    """Docker's proxy shows clients as its gateway, 172.17.0.1 and the like: nobody but AUTH may
    send.
    """
    given = {
        name: value
        for name, value in in_container("mailslice-smtp-in", secrets).items()
        if name.startswith("MAILSLICE_SMTP_IN_")
    }
    settings = load_settings({**given, "MAILSLICE_SMTP_IN_HOST": "0.0.0.0"}).smtp_in
    policy = policy_of(settings)
    assert policy.offers_auth
    assert all(network.is_loopback for network in policy.networks)
