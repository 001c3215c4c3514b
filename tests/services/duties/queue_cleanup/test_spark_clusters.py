"""A cleanup by Airflow's own steps on clusters whose nodes have neither clone nor .venv.

The steps are submitted as Airflow's tasks submit them, to a real standalone master with two workers
of another user, and to a real YARN in both deploy modes. Plans are on S3.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from mailslice.airflow.dag_duty import DagDuty
from mailslice.airflow.run_request import request_of
from mailslice.airflow.spark_operator import SparkStep
from mailslice.model.errors import StoreUnavailable
from tests.services.duties.queue_cleanup.test_artifacts_on_s3 import assert_clean, filled
from tests.services.duties.world import environment
from tests.spark_clusters import (
    archive,
    sent_with,
    shared_folder,
    spark_of_nodes,
    standalone,
    usable,
    yarn_cluster,
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(usable() is not None, reason=str(usable())),
]
Connect = Callable[[str], None]


class Clusters:
    """Started when a test asks for one, one at a time; they share the archive and Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = archive(folder)
        self.home = spark_of_nodes(folder)
        self.name, self.started, self.place = "", 0, folder
        self.stack = ExitStack()
        self.connection: dict[str, object] = {}
        self.environ: dict[str, str] = {}

    def use(self, kind: str) -> None:
        """Have the cluster of this kind up; the connection and the environment name it."""
        name, _, mode = kind.partition(" ")
        if name != self.name:
            self.stack.close()
            self.started += 1
            self.place = place = self.folder / f"{name}{self.started}"
            place.mkdir(mode=0o755)
            start = {"local": self._local, "standalone": self._standalone, "YARN": self._yarn}
            start[name](place)
            self.name = name
        extra = {"deploy-mode": mode or "client"}
        self.connection = {**self.connection, "conn_type": "spark", "extra": extra}

    def close(self) -> None:
        self.stack.close()

    def _local(self, _: Path) -> None:
        self.connection, self.environ = {"host": "local[2]"}, {}

    def _standalone(self, place: Path) -> None:
        url = self.stack.enter_context(standalone(place, self.home))
        self.connection = {"host": url}
        conf = json.dumps(sent_with(self.packages, spark_cores_max=2))
        self.environ = {"MAILSLICE_DUTY_SPARK_CONF": conf}

    def _yarn(self, place: Path) -> None:
        conf_folder = self.stack.enter_context(yarn_cluster(place))
        self.connection = {"host": "yarn"}
        conf = sent_with(
            self.packages,
            spark_executor_instances=1,
            spark_yarn_jars=f"local:{self.home}/jars/*",
            spark_yarn_stagingDir=(place / "staging").as_uri(),
        )
        self.environ = {
            "MAILSLICE_DUTY_SPARK_CONF": json.dumps(conf),
            "HADOOP_CONF_DIR": str(conf_folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with shared_folder() as folder:
        made = Clusters(folder)
        with ExitStack() as stack:
            stack.callback(made.close)
            yield made


@pytest.fixture
def on_s3(view):
    """The view; plans and reports are on S3, as on any cluster."""
    duty = {"artifacts": f"s3a://{view.settings.own.bucket}/artifacts", "small_rows": 0}
    duty = view.settings.duty.model_copy(update=duty)
    view.settings = view.settings.model_copy(update={"duty": duty})
    return view


def use(clusters: Clusters, kind: str, view, monkeypatch) -> dict[str, str]:
    """The environment of Airflow's worker, for that cluster; it is this process' from now on."""
    clusters.use(kind)
    environ = {
        **{name: v for name, v in environment(view.settings).items() if "MAILSLICE" in name},
        **clusters.environ,
        "MAILSLICE_DUTY_SMALL_ROWS": "0",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(clusters.connection),
    }
    for name in [name for name in os.environ if name.startswith("PYSPARK_")]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return environ


def context(run: str, **params: object) -> dict[str, object]:
    dag_run = SimpleNamespace(
        run_id=run,
        run_type=SimpleNamespace(value="manual"),
        triggering_user_name="tester",
        data_interval_start=datetime.now(UTC),
        data_interval_end=datetime.now(UTC),
    )
    return {"dag_run": dag_run, "params": {"grace": "2s", **params}}


def submit(view, name: str, asked: dict[str, object]) -> None:
    duty = DagDuty(duty="queue_cleanup")
    SparkStep(task_id=name, dag_duty=duty, step=name, mail_queue=view.queue).execute(asked)


@pytest.mark.parametrize("kind", ["local", "standalone", "YARN client", "YARN cluster"])
def test_a_cleanup_runs_by_its_steps(clusters, on_s3, monkeypatch, kind):
    view, asked = on_s3, context(f"on {kind}")
    live = filled(view)
    use(clusters, kind, view, monkeypatch)
    request = request_of(asked, "queue_cleanup", view.queue)
    submit(view, "plan", asked)
    view.steps(request, "check")
    submit(view, "apply", asked)
    view.steps(request, "verify")
    assert_clean(view, live, view.steps(request, "report"))
    if kind == "YARN cluster":
        secret = os.environ["MAILSLICE_S3_SECRET_KEY"].encode()
        showing = [file for file in files_below(clusters.place) if secret in file[1]]
        assert {path.name for path, _ in showing} == {"mailslice-settings.json"}
        assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path, _ in showing} == {0}


def files_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """What YARN wrote that is not large: logs, scripts, configuration, what was sent."""
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size < 1_000_000:
            yield path, path.read_bytes()


@pytest.mark.parametrize("kind", ["YARN client", "YARN cluster"])
def test_a_store_that_is_away_is_tried_again(clusters, on_s3, monkeypatch, kind):
    use(clusters, kind, on_s3, monkeypatch)
    monkeypatch.setenv("MAILSLICE_CASSANDRA_PORT", "1")
    with pytest.raises(StoreUnavailable, match=r"a later try may succeed: Cassandra at .*:1"):
        submit(on_s3, "plan", context(f"away, {kind}"))


@pytest.mark.parametrize("kind", ["standalone", "YARN client"])
def test_the_command_line_runs_on_a_cluster_too(clusters, on_s3, monkeypatch, kind):
    view = on_s3
    live = filled(view)
    use(clusters, kind, view, monkeypatch)
    monkeypatch.setenv("MAILSLICE_DUTY_SPARK_MASTER", str(clusters.connection["host"]))
    words = ["duty", "run", "queue_cleanup", "--queue", view.queue, "--grace", "2s", "--json"]
    command = [str(Path(sys.executable).parent / "mailslice"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_clean(view, live, json.loads(done.stdout))


@pytest.mark.parametrize("executors", [1, 2])
def test_rows_a_second_on_executors_of_one_core(
    clusters, on_s3, monkeypatch, capsys, executors, tmp_path
):
    """Prints what docs/scale.md has; the figures are those of this machine, and of this moment."""
    use(clusters, "standalone", on_s3, monkeypatch)
    conf = json.loads(clusters.environ["MAILSLICE_DUTY_SPARK_CONF"])
    conf |= {"spark.cores.max": executors}
    monkeypatch.setenv("MAILSLICE_DUTY_SPARK_CONF", json.dumps(conf))
    monkeypatch.setenv("MAILSLICE_DUTY_SPARK_MASTER", str(clusters.connection["host"]))
    words = ["bench", "cleanup", "--rows", "100000", "--json"]
    command = [str(Path(sys.executable).parent / "mailslice"), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    rates = [figures[f"{step}_rows_per_second"] for step in ("plan", "apply")]
    with capsys.disabled():
        print(
            f"\n{executors} executors: plan {rates[0]}, apply {rates[1]} rows/s; {os.getloadavg()}"
        )
    assert min(rates) > 0
