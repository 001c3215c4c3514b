"""docker-compose.yaml against the compose schema, against itself, and against the local stack:
versions, ports, settings.
"""

from __future__ import annotations

import copy
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mailslice.model.settings import clone_root, load_settings, read_env_file, variables
from mailslice.worker.smtp_server.policy import policy_of
from stack.airflow import SPARK_POOL, airflow_environment
from stack.services import store_settings
from stack.settings import Profile, StackSettings, stack_settings

ROOT = clone_root()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = {
    path.name.removesuffix(".Dockerfile"): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docker").glob("*.Dockerfile"))
}
AIRFLOW = ("airflow-init", "api-server", "scheduler", "dag-processor", "triggerer")
ONE_SHOT = {"airflow-init", "queue-init"}
MAILSLICE_IMAGES = {"mailslice-airflow", "mailslice-spark", "mailslice-worker"}
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
        *("queue-init", "mailslice-worker", "mailslice-smtp-in"),
    }


def test_stores_have_the_versions_of_the_local_stack(stack: StackSettings) -> None:
    assert SERVICES["cassandra"]["image"] == f"cassandra:{stack.sizes.cassandra_version}"
    assert f"FROM andrewgaul/s3proxy:s3proxy-{stack.sizes.s3proxy_version}\n" in DOCKERFILES["s3"]
    assert re.fullmatch(
        r"rabbitmq:3\.10\.\d+-management", SERVICES["rabbitmq"]["image"]
    )  # Debian 12's series: reference/local-services.md


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
    wanted = set(store_settings(stack)) | {"MAILSLICE_ARTIFACTS"}
    for service, about in SERVICES.items():
        if about["image"].partition(":")[0] in MAILSLICE_IMAGES and service != "spark-master":
            assert wanted <= set(environment(service)), service
            assert (
                environment(service)["MAILSLICE_S3_REGION"]
                == store_settings(stack)["MAILSLICE_S3_REGION"]
            )


def test_every_mailslice_setting_exists_and_points_to_a_service_that_does() -> None:
    for service in SERVICES:
        ours = {
            name: value
            for name, value in environment(service).items()
            if name.startswith("MAILSLICE_")
        }
        assert set(ours) <= set(variables()) | {"MAILSLICE_ADMIN_PASSWORD"}, service
        for name, value in ours.items():
            for host, port in re.findall(r"(?:@|//)([a-z0-9-]+):(\d+)", default(value)):
                assert host in SERVICES, (name, value)
                assert int(port) in {9000, 5672, 15672, 7077}


def test_the_s3_server_and_cassandra_are_as_large_and_as_set_as_the_local_ones(
    stack: StackSettings,
) -> None:
    assert environment("s3")["S3PROXY_JAVA_OPTS"] == f"-Xmx{stack.sizes.s3_heap}"
    assert environment("cassandra")["MAX_HEAP_SIZE"] == stack.sizes.cassandra_heap
    files = ROOT / "stack" / "files"
    local = (files / "s3proxy.conf").read_text(encoding="utf-8").splitlines()
    assert f"s3proxy.authorization={environment('s3')['S3PROXY_AUTHORIZATION']}" in local
    assert f"jclouds.provider={environment('s3')['JCLOUDS_PROVIDER']}" in local
    assert (
        environment("s3")["S3PROXY_IDENTITY"]
        == environment("mailslice-worker")["MAILSLICE_S3_ACCESS_KEY"]
    )


def test_airflow_is_set_as_the_local_one(stack: StackSettings) -> None:
    local = {
        name: value
        for name, value in airflow_environment(stack, {}).items()
        if name.startswith("AIRFLOW__")
    }
    containers = environment("scheduler")
    assert set(local) - LOCAL_ONLY <= set(containers)
    for name in set(local) - LOCAL_ONLY - DIFFERENT:
        assert containers[name] == local[name], name


def test_all_of_airflow_shares_one_environment_and_so_one_jwt_secret() -> None:
    first = environment(AIRFLOW[0])
    assert first["AIRFLOW__API_AUTH__JWT_SECRET"].startswith("${MAILSLICE_JWT_SECRET:?")
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
    assert set(re.findall(r"(?<!\$)\$\{(\w+)", text)) == set(read_env_file(ROOT / ".env.example"))
    for name, value in re.findall(r"\$\{(\w+):-([^}]+)\}", text):
        assert read_env_file(ROOT / ".env.example")[name] == value


def test_images_are_pinned() -> None:
    built = {"mailslice-airflow", "mailslice-spark", "mailslice-worker", "mailslice-s3"}
    for about in SERVICES.values():
        name, _, tag = about["image"].partition(":")
        assert re.fullmatch(r"\d+\.\d+(\.\d+)?[\w.-]*", tag), about["image"]
        assert name in built or "build" not in about
    for text in DOCKERFILES.values():
        assert all(
            re.search(r":\S*\d+\.\d+\.\d+", line)
            for line in text.splitlines()
            if line.startswith("FROM")
        )


def test_each_built_image_is_built_once_from_a_file_that_is_there() -> None:
    built = {
        about["image"].partition(":")[0].removeprefix("mailslice-"): about["build"]["dockerfile"]
        for about in SERVICES.values()
        if "build" in about
    }
    assert built == {name: f"docker/{name}.Dockerfile" for name in DOCKERFILES}
    assert len([about for about in SERVICES.values() if "build" in about]) == len(built)


def test_no_image_of_ours_runs_as_root_and_all_share_volumes_by_one_user() -> None:
    for name, text in DOCKERFILES.items():
        assert [line for line in text.splitlines() if line.startswith("USER")][
            -1
        ] == "USER 50000:0", name


def test_images_have_one_python_and_the_pinned_installer() -> None:
    pinned = re.search(
        r"^uv==(\S+)", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert pinned is not None
    pythons = {name: text for name, text in DOCKERFILES.items() if "FROM python:" in text}
    assert set(pythons) == {"airflow", "spark", "worker"}
    assert (
        len(
            {
                line
                for text in pythons.values()
                for line in text.splitlines()
                if line.startswith("FROM")
            }
        )
        == 1
    )
    assert all(f"uv=={pinned[1]} " in text for text in pythons.values())


def test_the_worker_image_has_the_worker_extra_alone() -> None:
    assert re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILES["worker"]) == ["worker"]
    assert "jdk" not in DOCKERFILES["worker"]


def test_everything_that_images_copy_is_sent_to_the_builder() -> None:
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    for text in DOCKERFILES.values():
        for line in text.splitlines():
            if line.startswith("COPY "):
                for source in line.split()[1:-1]:
                    assert source.split("/")[0] in kept
                    assert (ROOT / source).exists(), source


@pytest.mark.parametrize("service", ["queue-init", "mailslice-worker", "mailslice-smtp-in"])
def test_commands_of_the_worker_image_are_commands_of_mailslice(service: str) -> None:
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
    assert {word for word in words if word.startswith("--")} <= options
    assert (
        command.name
        == {"queue-init": "create", "mailslice-worker": "run", "mailslice-smtp-in": "smtp-in"}[
            service
        ]
    )


def test_no_edit_of_the_port_line_makes_smtp_in_an_open_relay() -> None:
    """Docker's proxy shows clients as its gateway, 172.17.0.1 and the like: nobody but AUTH may
    send.
    """
    given = {
        name: default(value)
        for name, value in environment("mailslice-smtp-in").items()
        if name.startswith("MAILSLICE_SMTP_IN_")
    }
    settings = load_settings({**given, "MAILSLICE_SMTP_IN_HOST": "0.0.0.0"}).smtp_in
    policy = policy_of(settings)
    assert policy.offers_auth
    assert all(network.is_loopback for network in policy.networks)
