"""The same job on a Spark standalone master with a worker on this machine, and on S3 artifacts.

Nothing changes but settings.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from mailslice.engine.spark_session import _find_java
from mailslice.model.settings import clone_root
from tests.ports import free_port
from tests.services.duties.world import environment

JARS = str(Path(pyspark.__file__).parent / "jars" / "*")


@contextmanager
def process(arguments, log, environ):
    with (
        log.open("w") as out,
        subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT, env=environ) as running,
    ):
        try:
            yield running
        finally:
            running.terminate()
            running.wait(30)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    """spark://127.0.0.1:PORT, with one worker of two cores."""
    _find_java()
    java = (
        str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
        if os.environ.get("JAVA_HOME")
        else "java"
    )
    folder, port = tmp_path_factory.mktemp("standalone"), free_port()
    environ = {
        **os.environ,
        "SPARK_HOME": str(Path(JARS).parents[1]),
        "SPARK_SCALA_VERSION": "2.12",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    master = [
        java,
        "-Xmx256m",
        "-cp",
        JARS,
        "org.apache.spark.deploy.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        "0",
    ]
    worker = [
        java,
        "-Xmx256m",
        "-cp",
        JARS,
        "org.apache.spark.deploy.worker.Worker",
        "--host",
        "127.0.0.1",
        "--cores",
        "2",
        "--memory",
        "1g",
        "--webui-port",
        "0",
    ]
    with process(master, folder / "master.log", environ):
        _wait_for(folder / "master.log", "I have been elected leader")
        with process([*worker, f"spark://127.0.0.1:{port}"], folder / "worker.log", environ):
            _wait_for(folder / "worker.log", "Successfully registered with master")
            yield f"spark://127.0.0.1:{port}"


def _wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + 240
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.3)


def submit(view, step, run, environ, master) -> None:
    """As Airflow does: spark-submit jobs/queue_cleanup.py STEP."""
    job = [
        str(clone_root() / "jobs" / "queue_cleanup.py"),
        step,
        "--queue",
        view.queue,
        "--run",
        run,
        "--who",
        "tester",
        "--params",
        json.dumps({"grace": "2s"}),
    ]
    command = [
        str(Path(sys.executable).parent / "spark-submit"),
        "--master",
        master,
        "--conf",
        "spark.executor.memory=512m",
        *job,
    ]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.strip().splitlines()[-1])["step"] == step


def filled(view):
    view.start_at(0)
    for number in range(4):
        view.insert(number, dead=True)
    return view.insert(5, dead=False)


def assert_clean(view, live, report):
    assert (report["status"], report["planned"], report["applied"], report["marks"]["dropped"]) == (
        "done",
        4,
        4,
        4,
    )
    assert [view.rows(number) for number in (0, 1, 2, 3, 5)] == [set()] * 4 + [{live}]
    assert (view.browse_start, view.content_start) == (view.at(5), view.at(5))


# tests/acceptance/test_airflow_cleanup.py has the same jobs on such a master, by the DAG.
@pytest.mark.soak
def test_the_job_runs_on_a_standalone_master(view, standalone):
    live = filled(view)
    environ = {
        **os.environ,
        **environment(view.settings),
        "MAILSLICE_QUEUE_SHARED": "false",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    environ["PYTHONPATH"] = str(clone_root() / "include")
    submit(view, "plan", "on-a-cluster", environ, standalone)
    view.steps(view.request("on-a-cluster"), "check")
    submit(view, "apply", "on-a-cluster", environ, standalone)
    view.steps(view.request("on-a-cluster"), "verify")
    assert_clean(view, live, view.steps(view.request("on-a-cluster"), "report"))


def test_plans_reports_and_data_docs_on_s3(view, with_spark):
    live = filled(view)
    prefix = f"s3a://{view.settings.own.bucket}/artifacts"
    view.settings = view.settings.model_copy(
        update={"duty": view.settings.duty.model_copy(update={"artifacts": prefix})}
    )
    report = view.clean()
    assert_clean(view, live, report)
    assert report["artifacts"].startswith(f"{prefix}/runs/queue_cleanup/{view.queue}/")
    keys = {found.key for found in view.stores.own_blobs.list()}
    run = report["artifacts"].removeprefix(f"s3a://{view.settings.own.bucket}/")
    assert {
        f"{run}/{name}.json" for name in ("plan", "check", "applied", "verify", "report")
    } <= keys
    assert any(key.startswith(f"{run}/plan/part-") for key in keys)
    assert "artifacts/data_docs/index.html" in keys
    assert report["dataDocs"].removeprefix(f"s3a://{view.settings.own.bucket}/") in keys
