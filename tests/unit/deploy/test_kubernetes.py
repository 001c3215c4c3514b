"""deploy/kubernetes: built, held against Kubernetes' own schemas, and against mailslice."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml

from mailslice import __version__
from mailslice.cli.main import app
from mailslice.maintenance.registry import load, names
from mailslice.model import errors
from mailslice.model.errors import MailsliceError
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.model.settings import clone_root, load_settings
from mailslice.worker.smtp_server.policy import policy_of
from tests.services.worker_process.sink import certificate
from tests.unit.compose.stages import stages
from tests.unit.deploy.kustomize import BadKustomization, Resource, build, documents

ROOT = clone_root()
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
VERSIONS = ("1.30", "1.34", "1.37")
ON_DEMAND = "0 0 1 1 *"
NEEDS_KUBECTL = pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl")
OWN_SCHEMAS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parent / "schemas").glob("*.json"))
}
"""Of custom resources, by their kind."""


@cache
def built(overlay: str) -> list[Resource]:
    return build(FOLDER / "overlays" / overlay)


def of_kind(*kinds: str, overlay: str = "full") -> dict[str, Resource]:
    return {one["metadata"]["name"]: one for one in built(overlay) if one["kind"] in kinds}


def pod_template(resource: Resource) -> dict[str, Any]:
    spec = resource["spec"]
    if resource["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: dict[str, Any] = spec["template"]
    return template


def pods() -> Iterator[Any]:
    for name, one in of_kind("Deployment", "CronJob").items():
        yield pytest.param(pod_template(one), id=name)


def container(template: dict[str, Any]) -> dict[str, Any]:
    (only,) = template["spec"]["containers"]
    return dict(only)


def validate(resource: Resource, version: str) -> None:
    """Raises for a field that is unknown or wrong, and for a kind that has no schema."""
    own = OWN_SCHEMAS.get(resource["kind"])
    if own is not None:
        jsonschema.validate(resource, own)
    else:
        used = kubernetes_validate.validate(resource, version, strict=True)
        assert used == version, "it takes a neighbour of a version that it does not know"


def environment(template: dict[str, Any], secrets: Path) -> dict[str, str]:
    """The environment of a pod. Its secrets are files below `secrets`, of awkward characters."""
    spec = container(template)
    given: dict[str, str] = {}
    for source in spec["envFrom"]:
        given |= of_kind("ConfigMap")[source["configMapRef"]["name"]]["data"]
    given |= {one["name"]: one["value"] for one in spec["env"]}
    for name, path in given.items():
        if name.endswith("_FILE"):
            file = secrets / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("p@ss/w#rd %2F:ü", encoding="utf-8")
            given[name] = str(file)
    return given


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_overlay_is_valid_in_three_versions_of_kubernetes(overlay: str, version: str) -> None:
    assert built(overlay)
    for resource in built(overlay):
        validate(resource, version)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", "spec/template/spec/enableServiceLink", False),
        ("Deployment", "spec/template/spec/terminationGracePeriodSeconds", "60"),
        ("CronJob", "spec/jobTemplate/spec/podFailurePolicy/rule", []),
        ("NetworkPolicy", "spec/policyType", []),
        ("ScaledObject", "spec/maxReplicas", 3),
        ("ScaledObject", "spec/minReplicaCount", "2"),
        ("TriggerAuthentication", "spec/secretTargetRef/0/secret", "x"),
        ("ServiceMonitor", "spec/endpoints/0/port", 8000),
    ],
)
def test_a_mistake_would_be_seen(kind: str, path: str, value: object) -> None:
    broken = copy.deepcopy(next(iter(of_kind(kind).values())))
    *parents, last = path.split("/")
    place: Any = broken
    for step in parents:
        place = place[int(step) if step.isdigit() else step]
    place[last] = value
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        validate(broken, VERSIONS[-1])


def test_a_kind_without_a_schema_is_a_failure() -> None:
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        validate(
            {"apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": {"name": "x"}}, "1.37"
        )


def test_the_overlays_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"deploy/kubernetes/overlays/([\w-]+)", page)) <= set(OVERLAYS)
    for overlay in OVERLAYS:
        assert f"| `{overlay}` |" in page


def kubectl_builds(folder: Path) -> dict[str, Resource]:
    """What kubectl makes of a folder, by kind and name."""
    words = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    resources: Any = yaml.safe_load_all(done.stdout)
    return {f"{one['kind']} {one['metadata']['name']}": one for one in resources}


@NEEDS_KUBECTL
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_builds_the_same(overlay: str) -> None:
    ours = {f"{one['kind']} {one['metadata']['name']}": one for one in built(overlay)}
    assert kubectl_builds(FOLDER / "overlays" / overlay) == ours


@NEEDS_KUBECTL
def test_the_overlays_that_the_page_writes_are_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    scripts = re.findall(r"^( *)(mkdir \w+ && cat .*?^ *END)$", page, re.MULTILINE | re.DOTALL)
    assert len(scripts) == 2
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    for indent, script in scripts:
        text = re.sub(rf"^{indent}", "", script, flags=re.MULTILINE)
        subprocess.run(["bash", "-euc", text], cwd=tmp_path, check=True)
    mail, outgoing = (kubectl_builds(tmp_path / name) for name in ("mail", "outgoing"))
    for resource in (*mail.values(), *outgoing.values()):
        validate(resource, VERSIONS[-1])
        if resource["kind"] in {"CronJob", "Deployment"}:
            image = container(pod_template(resource))["image"]
            assert image.startswith("registry.example.com/mailslice-")
    nodes = mail["ConfigMap mailslice-settings"]["data"]["MAILSLICE_CASSANDRA_CONTACT_POINTS"]
    assert nodes == "cassandra.prod.svc"
    jobs = {}
    for name, job in of_kind("CronJob").items():
        words = container(pod_template(job))["args"]
        if "--queue=spool" in words or "spool" in words:
            words = [word.replace("spool", "outgoing") for word in words]
            jobs[f"CronJob {name}-outgoing"] = words
    made = {name: container(pod_template(job))["args"] for name, job in outgoing.items()}
    assert made == jobs


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("kustomization.yaml", "kind: Kustomization\nresource: []\n", "unknown fields"),
        ("kustomization.yaml", "kind: Component\n", "is no Kustomization"),
        ("other.yaml", "kind: ConfigMap\n", "in no list"),
    ],
)
def test_the_builder_sees_what_is_wrong(tmp_path: Path, file: str, text: str, words: str) -> None:
    head = "apiVersion: kustomize.config.k8s.io/v1beta1\n"
    (tmp_path / "kustomization.yaml").write_text(head + "kind: Kustomization\n", encoding="utf-8")
    (tmp_path / file).write_text(head + text, encoding="utf-8")
    with pytest.raises(BadKustomization, match=words):
        build(tmp_path)


@pytest.mark.parametrize("template", pods())
def test_a_pod_may_do_nothing_that_it_need_not(template: dict[str, Any]) -> None:
    spec, of_container = template["spec"], container(template)
    security = of_container["securityContext"]
    assert spec["serviceAccountName"] in of_kind("ServiceAccount")
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    pod = spec["securityContext"]
    assert (pod["runAsNonRoot"], pod["runAsUser"]) == (True, 50000)
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert of_container["resources"]["limits"]["memory"]
    assert of_container["resources"]["requests"]["cpu"]
    assert template["metadata"]["labels"]["app.kubernetes.io/part-of"] == "mailslice"
    writable = {one["name"] for one in spec["volumes"] if "emptyDir" in one}
    assert writable == {"tmp"}
    assert {"name": "tmp", "mountPath": "/tmp"} in of_container["volumeMounts"]


@pytest.mark.parametrize("template", pods())
def test_a_pod_has_settings_of_mailslice_and_no_secret_outside_of_files(
    template: dict[str, Any], tmp_path: Path
) -> None:
    settings = load_settings(environment(template, tmp_path), Path("/nonexistent"))
    assert settings.s3.secret_key is not None
    assert settings.s3.secret_key.get_secret_value() == "p@ss/w#rd %2F:ü"
    assert settings.worker.health_host == "0.0.0.0"
    assert settings.duty.artifacts.startswith("s3a://"), "pods share no folder"
    spec = container(template)
    assert all("value" in one for one in spec["env"]), "a secret in the environment"
    mounts = {one["name"]: one["mountPath"] for one in spec["volumeMounts"]}
    files = {one["value"] for one in spec["env"] if one["name"].endswith("_FILE")}
    files |= set(of_kind("ConfigMap")["mailslice-settings"]["data"].values())
    for path in (one for one in files if one.startswith("/run/secrets/")):
        assert path.rpartition("/")[0] == mounts["secrets"]


def test_secrets_and_their_keys_are_those_that_the_page_creates(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    created = set(re.findall(r"--from-file=([\w-]+)", page))
    read = {
        Path(value).name
        for param in pods()
        for name, value in environment(param.values[0], tmp_path).items()
        if name.endswith("_FILE")
    }
    assert created == read
    references = of_kind("TriggerAuthentication")["mailslice-rabbitmq"]["spec"]["secretTargetRef"]
    assert {one["key"] for one in references} <= created
    names = {one["name"] for one in references}
    for param in pods():
        volumes = param.values[0]["spec"]["volumes"]
        names |= {one["secret"]["secretName"] for one in volumes if "secret" in one}
    assert names == set(re.findall(r"create secret \w+ ([\w-]+)", page))


@pytest.mark.parametrize("template", pods())
def test_a_pod_runs_a_command_of_its_image(template: dict[str, Any]) -> None:
    spec = container(template)
    words = spec["args"]
    image, _, tag = spec["image"].partition(":")
    stage = stages((ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8"))[
        image.removeprefix("mailslice-")
    ]
    assert tag == __version__
    assert 'ENTRYPOINT ["mailslice"]' in stage.lines
    assert (image == "mailslice-duties") == (words[0] in {"duty", "queue"})
    command: Any = typer.main.get_command(app)
    context: Any = command.make_context("mailslice", [], resilient_parsing=True)
    for number, word in enumerate(words):
        if not hasattr(command, "get_command"):
            rest = words[number:]
            break
        command = command.get_command(context, word)
    command.make_context("mailslice", list(rest))  # raises for an option that it does not know


def test_probes_ask_for_paths_that_are_served() -> None:
    for param in pods():
        spec = container(param.values[0])
        if spec["args"][0] not in {"worker", "exporter"}:
            continue
        assert {"--health-port=8000", "--port=8000"} & set(spec["args"])
        (port,) = (one["containerPort"] for one in spec["ports"] if one["name"] == "http")
        assert port == 8000
        ready = "/readyz" if spec["args"][0] == "worker" else "/livez"
        assert spec["readinessProbe"]["httpGet"] == {"path": ready, "port": "http"}
        for probe in ("livenessProbe", "startupProbe"):
            assert spec[probe]["httpGet"] == {"path": "/livez", "port": "http"}


def test_selectors_select_pods_that_are_there() -> None:
    labels = [param.values[0]["metadata"]["labels"] for param in pods()]

    def selects(selector: dict[str, str]) -> bool:
        return any(selector.items() <= one.items() for one in labels)

    for one in of_kind("Deployment").values():
        assert selects(one["spec"]["selector"]["matchLabels"])
    for one in of_kind("Service").values():
        assert selects(one["spec"]["selector"])
        for port in one["spec"]["ports"]:
            assert port["targetPort"] in {"http", "smtp"}
    for one in of_kind("PodDisruptionBudget").values():
        assert selects(one["spec"]["selector"]["matchLabels"])
    for one in of_kind("NetworkPolicy").values():
        assert selects(one["spec"]["podSelector"]["matchLabels"])
    (monitor,) = of_kind("ServiceMonitor").values()
    chosen = monitor["spec"]["selector"]["matchLabels"]
    scraped = [
        one
        for one in of_kind("Service").values()
        if chosen.items() <= one["metadata"]["labels"].items()
    ]
    ports = {port["name"] for one in scraped for port in one["spec"]["ports"]}
    assert monitor["spec"]["endpoints"][0]["port"] in ports


def test_every_pod_may_reach_nodetool_and_the_stores() -> None:
    egress = of_kind("NetworkPolicy")["mailslice"]["spec"]["egress"]
    ports = {port["port"] for rule in egress for port in rule["ports"]}
    assert {7199, 9042, 5672, 15672, 443} <= ports


def test_workers_are_scaled_by_the_queue_that_they_consume() -> None:
    (scaled,) = of_kind("ScaledObject").values()
    assert scaled["spec"]["scaleTargetRef"]["name"] in of_kind("Deployment")
    trigger = scaled["spec"]["triggers"][0]
    assert trigger["metadata"]["queueName"] == RabbitNames(QueueName("spool")).work_queue
    assert trigger["authenticationRef"]["name"] in of_kind("TriggerAuthentication")
    url = of_kind("ConfigMap")["mailslice-settings"]["data"]["MAILSLICE_RABBITMQ_MANAGEMENT_URL"]
    assert trigger["metadata"]["host"] == f"{url}/"
    worker = scaled["spec"]["scaleTargetRef"]["name"]
    assert "replicas" not in of_kind("Deployment")[worker]["spec"], "KEDA sets them"
    assert of_kind("Deployment", overlay="all")[worker]["spec"]["replicas"] == 2


def test_a_worker_has_time_for_the_mail_that_it_is_sending(tmp_path: Path) -> None:
    template = pod_template(of_kind("Deployment")["mailslice-worker"])
    settings = load_settings(environment(template, tmp_path), Path("/nonexistent"))
    grace = template["spec"]["terminationGracePeriodSeconds"]
    assert grace >= settings.relay.answer_timeout.total_seconds() + 60


def test_smtp_in_is_no_open_relay_and_asks_for_tls(tmp_path: Path) -> None:
    template = pod_template(of_kind("Deployment")["mailslice-smtp-in"])
    settings = load_settings(environment(template, tmp_path), Path("/nonexistent")).smtp_in
    given, key = certificate(tmp_path)
    here = {"host": "0.0.0.0", "tls_certificate": given, "tls_key": key}
    policy = policy_of(settings.model_copy(update=here))
    assert policy.offers_auth
    assert all(network.is_loopback for network in policy.networks)
    assert not settings.auth_without_tls
    tls = {str(settings.tls_certificate), str(settings.tls_key)}
    assert tls == {"/run/secrets/tls/tls.crt", "/run/secrets/tls/tls.key"}


def dag_text(duty: str) -> str:
    return (ROOT / "dags" / f"{duty}.py").read_text(encoding="utf-8")


WEEKLY_JOBS = {"mailslice-queue-sweep": "queue_cleanup"}


def duty_jobs() -> list[str]:
    return sorted(of_kind("CronJob").keys() - {"mailslice-queue-create", *WEEKLY_JOBS})


@pytest.mark.parametrize("name", duty_jobs())
def test_a_duty_has_the_schedule_of_its_dag_and_is_suspended_where_it_changes_something(
    name: str,
) -> None:
    spec, words = (
        of_kind("CronJob")[name]["spec"],
        container(pod_template(of_kind("CronJob")[name])),
    )
    args, duty = words["args"], words["args"][2]
    assert name == f"mailslice-{duty.replace('_', '-')}"
    assert spec["suspend"] == ("Tag.READS" not in dag_text(duty))
    assert (spec["timeZone"], spec["concurrencyPolicy"]) == ("Etc/UTC", "Forbid")
    assert "--notify" in args
    if "schedule=" in dag_text(duty):
        assert f'"{spec["schedule"]}"' in dag_text(duty)
        assert "--dry-run" not in args
    elif duty != "reclaim":  # its DAG follows the cleanup
        assert spec["schedule"] == ON_DEMAND
        assert "--dry-run" in args[:-1], "the page cuts that line off"


def weekly_options() -> dict[str, set[str]]:
    """What the scheduled run of a Sunday does besides, of the duties that have any."""
    weekly = {duty: load(duty).params.WEEKLY for duty in names()}
    return {
        duty: {f"--{name.replace('_', '-')}" for name, value in params.items() if value is True}
        for duty, params in weekly.items()
        if params
    }


def test_what_a_duty_does_once_a_week_has_a_job_of_its_own() -> None:
    jobs = {name: one["spec"] for name, one in of_kind("CronJob").items() if name in WEEKLY_JOBS}
    assert {name: WEEKLY_JOBS[name] for name in jobs} == WEEKLY_JOBS
    assert sorted(WEEKLY_JOBS.values()) == sorted(weekly_options())
    for name, spec in jobs.items():
        args = container(pod_template(of_kind("CronJob")[name]))["args"]
        of_day = container(pod_template(of_kind("CronJob")["mailslice-queue-cleanup"]))["args"]
        assert args[:4] == of_day[:4] == ["duty", "run", WEEKLY_JOBS[name], "--queue=spool"]
        assert weekly_options()[WEEKLY_JOBS[name]] <= set(args)
        assert "--notify" in args
        assert spec["suspend"]
        assert spec["schedule"].split()[2:] == ["*", "*", "0"], "Sunday"
        assert (spec["timeZone"], spec["concurrencyPolicy"]) == ("Etc/UTC", "Forbid")


CHANGING = [
    name
    for name, job in of_kind("CronJob").items()
    if job["spec"]["suspend"] and name != "mailslice-queue-create"
]


def time_limit(name: str) -> timedelta:
    args = container(pod_template(of_kind("CronJob")[name]))["args"]
    (limit,) = (word for word in args if word.startswith("--time-limit="))
    given = load(args[2]).params.parse({"time_limit": limit.partition("=")[2]}).time_limit
    assert given is not None
    return given


@pytest.mark.parametrize("name", CHANGING)
def test_a_job_that_changes_something_ends_by_itself_before_its_deadline(name: str) -> None:
    spec = of_kind("CronJob")[name]["spec"]["jobTemplate"]["spec"]
    deadline = timedelta(seconds=spec["activeDeadlineSeconds"])
    assert time_limit(name) <= deadline * 0.4, "as a step of its DAG: plan and verify take time"


def test_the_cleanup_of_a_sunday_ends_before_the_sweep_begins() -> None:
    """The sweep would be refused by its lock, and come again after a week."""
    jobs = of_kind("CronJob")

    def start(name: str) -> timedelta:
        minute, hour, *_ = jobs[name]["spec"]["schedule"].split()
        return timedelta(hours=int(hour), minutes=int(minute))

    cleanup, sweep = "mailslice-queue-cleanup", "mailslice-queue-sweep"
    assert start(cleanup) + time_limit(cleanup) < start(sweep)
    assert start(sweep) + time_limit(sweep) < start("mailslice-reclaim")


def test_every_duty_on_james_queue_has_a_job() -> None:
    jobs = {name.removeprefix("mailslice-").replace("-", "_") for name in duty_jobs()}
    assert jobs == set(names()) - {"stuck_mails_postal"}


def exit_codes() -> dict[str, int]:
    """The exit code of every error of mailslice, and that of a bug."""
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    of_errors = {one.__name__: one.exit_code for one in classes if issubclass(one, MailsliceError)}
    return {**of_errors, "a bug": 1}


def test_only_a_store_that_is_away_is_tried_again() -> None:
    for job in of_kind("CronJob").values():
        spec = job["spec"]["jobTemplate"]["spec"]
        final, drained = spec["podFailurePolicy"]["rules"]
        assert pod_template(job)["spec"]["restartPolicy"] == "Never", "podFailurePolicy needs it"
        assert (final["action"], final["onExitCodes"]["operator"]) == ("FailJob", "In")
        assert final["onExitCodes"]["containerName"] == container(pod_template(job))["name"]
        codes = exit_codes()
        tried = {name for name, code in codes.items() if code not in final["onExitCodes"]["values"]}
        assert tried == {name for name, code in codes.items() if code == 4}
        assert {"StoreUnavailable", "TryAgain"} <= tried
        assert spec["backoffLimit"] > 0
        assert drained["action"] == "Ignore"


def test_every_file_is_in_an_overlay() -> None:
    in_files = {
        (one["kind"], one["metadata"]["name"])
        for path in FOLDER.rglob("*.yaml")
        for one in documents(path)
        if path.name not in {"kustomization.yaml", "pod.yaml"}
    }
    assert in_files == {(one["kind"], one["metadata"]["name"]) for one in built("full")}
