"""What a Spark step submits, by kind of cluster, and what it makes of how the job ended.

A script takes spark-submit's place: it keeps what it was given, and ends as the test says.
"""

import json
import os
import re
import shlex
import stat
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.providers.apache.spark.hooks import spark_submit as hook_module
from airflow.sdk.exceptions import AirflowFailException

from mailslice.airflow.dag_duty import DagDuty
from mailslice.airflow.run_request import request_of
from mailslice.airflow.spark_operator import SparkStep
from mailslice.engine.scratch import scratch_folder
from mailslice.maintenance import spark_job
from mailslice.maintenance.artifacts import folder_of
from mailslice.maintenance.submission import OUTCOME, read_settings
from mailslice.model.errors import StoreUnavailable
from mailslice.model.package_files import job_file
from mailslice.model.settings import clone_root, load_settings, variables

CLEANUP = DagDuty(duty="queue_cleanup")
SUBMIT = """#!{python}
import json, os, pathlib, shutil, sys
told = pathlib.Path({told!r})
told.write_text(json.dumps({{"words": sys.argv[1:], "environ": dict(os.environ)}}))
for word in sys.argv[1:]:
    for path in word.partition("=")[2].split(","):
        if path.endswith(("mailslice.zip", "settings.json")) and os.path.isfile(path):
            shutil.copy2(path, told.parent)
for name, text in json.loads({left!r}).items():
    attempt = next(w for w in sys.argv if w.startswith("--attempt=")).partition("=")[2]
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_text(text.replace("ATTEMPT", attempt))
print("\t exit code: {pod}", flush=True)  # of the driver, as Spark on Kubernetes says it
os.kill(os.getpid(), -{code}) if {code} < 0 else sys.exit({code})
"""
SECRET = "s3cr3t-pa55"


def context(**params):
    dag_run = SimpleNamespace(
        run_id="manual__1",
        run_type=SimpleNamespace(value="manual"),
        triggering_user_name=params.pop("user", "alice"),
        data_interval_start=datetime(2026, 11, 1, 2, 15, tzinfo=UTC),
        data_interval_end=datetime(2026, 11, 2, 2, 15, tzinfo=UTC),
    )
    return {"dag_run": dag_run, "params": params}


@dataclass
class Submit:
    """The script, and what it was called with."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    code: int = 0
    pod_code: int | None = None
    """The exit code of the driver that spark-submit prints, if it is not spark-submit's own."""
    left: dict = field(default_factory=dict)

    def write(self):
        binary = self.folder / "spark" / "bin" / "spark-submit"
        binary.parent.mkdir(parents=True, exist_ok=True)
        values = {"told": str(self.folder / "told.json"), "left": json.dumps(self.left)}
        values |= {"pod": self.code if self.pod_code is None else self.pod_code}
        binary.write_text(SUBMIT.format(python=sys.executable, code=self.code, **values))
        binary.chmod(0o755)

    def connect(self, host, *, port=None, **extra):
        value = {"conn_type": "spark", "host": host, "extra": extra}
        value |= {"port": port} if port else {}
        self.monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(value))

    def run(self, asked=None, *, queue="spool", name="apply", **more):
        self.write()
        step = SparkStep(task_id=name, dag_duty=CLEANUP, step=name, mail_queue=queue, **more)
        step.execute(asked or context())

    @property
    def called(self):
        return json.loads((self.folder / "told.json").read_text())

    @property
    def words(self):
        return self.called["words"]

    @property
    def conf(self):
        """The options of `--conf`."""
        pairs = zip(self.words, self.words[1:], strict=False)
        return dict(word.split("=", 1) for option, word in pairs if option == "--conf")

    @property
    def job_words(self):
        """What stands behind the job's file."""
        at = next(n for n, word in enumerate(self.words) if word.endswith("queue_cleanup.py"))
        return self.words[at + 1 :]

    @property
    def settings(self):
        return next((w for w in self.job_words if w.startswith("--settings=")), None)


@pytest.fixture
def submit(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("MAILSLICE_", "PYSPARK_", "SPARK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("MAILSLICE_DUTY_SMALL_ROWS", "0")
    monkeypatch.setenv("MAILSLICE_ARTIFACTS", str(tmp_path / "artifacts"))
    monkeypatch.setenv("MAILSLICE_RABBITMQ_URL", f"amqp://user:{SECRET}@10.1.1.1:5672/%2F")
    monkeypatch.setenv("MAILSLICE_S3_ACCESS_KEY", "key")
    monkeypatch.setenv("MAILSLICE_S3_SECRET_KEY", SECRET)
    made = Submit(tmp_path, monkeypatch)
    made.connect("local[2]")
    return made


def told_to_the_job(monkeypatch, words):
    """Step, request and settings, as the job itself reads them."""
    told = []
    monkeypatch.setattr(spark_job, "run_step", lambda *words: told.append(words) or {})
    monkeypatch.setattr(spark_job.logging, "basicConfig", lambda **_: None)
    assert spark_job.main("queue_cleanup", words) == 0
    return told[0]


@pytest.mark.parametrize("queue", ["spool", "-outgoing", "--queue", "--run=x", "a b", "-"])
@pytest.mark.parametrize("user", ["alice", "-alice", "--params"])
def test_the_job_is_told_run_queue_who_params_and_settings(monkeypatch, submit, queue, user):
    asked = context(user=user, queues=["spool"], reason="--because")
    submit.run(asked, queue=queue)
    kept = submit.folder / "mailslice-settings.json"
    words = [w for w in submit.job_words if not w.startswith("--settings")]
    step, request, settings = told_to_the_job(monkeypatch, [*words, f"--settings={kept}"])
    assert (step, request) == ("apply", request_of(asked, "queue_cleanup", queue))
    assert settings == load_settings()


KINDS = {
    "local": {"host": "local[*]"},
    "standalone": {"host": "spark://master", "port": 7077},
    "YARN client": {"host": "yarn", "deploy-mode": "client"},
    "YARN cluster": {"host": "yarn", "deploy-mode": "cluster"},
    "Kubernetes client": {"host": "k8s://https://10.0.0.1:6443", "deploy-mode": "client"},
    "Kubernetes cluster": {
        "host": "k8s://https://10.0.0.1:6443",
        "deploy-mode": "cluster",
        "jobs": "local:///opt/x/mailslice/jobs/",
    },
}


@pytest.fixture(params=KINDS)
def kind(request, submit):
    """Each kind of cluster in turn; its connection is there."""
    if "Kubernetes" in request.param:
        # The provider asks no more than whether the package is there.
        request.getfixturevalue("monkeypatch").setattr(
            hook_module, "kube_client", object(), raising=False
        )
    submit.connect(**KINDS[request.param])
    return request.param


def test_only_a_local_master_gets_options_that_a_cluster_sets_better(submit, kind):
    submit.run()
    theirs = {"spark.ui.enabled", "spark.sql.shuffle.partitions", "spark.driver.memory"}
    theirs |= {"spark.executor.memory", "spark.executorEnv.PYTHONPATH", "spark.pyspark.python"}
    given = theirs & set(submit.conf)
    assert given == (
        {"spark.ui.enabled", "spark.sql.shuffle.partitions"} if kind == "local" else set()
    )
    assert not [key for key in submit.conf if "Env." in key]
    python = submit.called["environ"].get("PYSPARK_PYTHON")
    assert python == (sys.executable if kind == "local" else None)


def test_the_package_goes_along_where_no_image_has_it(submit, kind):
    submit.run()
    sent = (submit.folder / "mailslice.zip").is_file()
    assert sent == (kind not in ("local", "Kubernetes cluster"))
    if sent:
        names = zipfile.ZipFile(submit.folder / "mailslice.zip").namelist()
        assert "mailslice/engine/frames.py" in names
        assert not [name for name in names if "__pycache__" in name or ".state" in name]


def test_no_secret_is_in_a_command_or_a_log_and_the_file_is_its_owners(submit, kind, caplog):
    submit.run()
    assert SECRET not in " ".join(submit.words) + caplog.text
    if kind == "Kubernetes cluster":
        assert submit.settings is None
        return
    kept = submit.folder / "mailslice-settings.json"
    assert read_settings(kept).rabbitmq.url.get_secret_value().count(SECRET) == 1
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    named = submit.settings.partition("=")[2]
    assert not Path(named).exists(), "it is removed once the job is over"
    if kind == "YARN cluster":
        assert named == "mailslice-settings.json"
        assert submit.conf["spark.files"].endswith("/mailslice-settings.json")


def test_what_a_killed_task_left_is_removed_by_the_next(submit):
    submit.monkeypatch.setattr(tempfile, "tempdir", str(submit.folder))
    (submit.folder / "mailslice-submit.killed").mkdir()
    here = scratch_folder("mailslice-submit")
    submit.run()
    assert list(submit.folder.glob("mailslice-submit.*")) == [here]


def test_a_driver_in_a_pod_runs_the_job_of_its_image(submit, kind):
    submit.run()
    (job,) = [word for word in submit.words if word.endswith("/queue_cleanup.py")]
    image = job == "local:///opt/x/mailslice/jobs/queue_cleanup.py"
    assert image == (kind == "Kubernetes cluster")
    assert image or Path(job).is_file()


def test_a_pod_without_a_folder_of_jobs_is_refused(submit):
    submit.monkeypatch.setattr(hook_module, "kube_client", object(), raising=False)
    submit.connect("k8s://https://10.0.0.1:6443", **{"deploy-mode": "cluster"})
    with pytest.raises(AirflowFailException, match=r"in the extra 'jobs', such as local:///"):
        submit.run()


def test_a_driver_here_runs_this_python_and_one_on_the_cluster_the_clusters(submit, kind):
    submit.run()
    chosen = submit.conf.get("spark.pyspark.driver.python")
    assert chosen == (None if kind == "local" or "cluster" in kind else sys.executable)


def test_a_driver_on_the_cluster_is_waited_for_and_not_repeated_by_yarn(submit, kind):
    submit.monkeypatch.setenv("MAILSLICE_DUTY_SPARK_CONF", "spark.yarn.queue=night")
    submit.run()
    waits = {key: value for key, value in submit.conf.items() if "waitAppCompletion" in key}
    family = {"YARN": "spark.yarn.submit", "Kubernetes": "spark.kubernetes.submission"}
    expected = family.get(kind.partition(" ")[0])
    assert waits == ({f"{expected}.waitAppCompletion": "true"} if expected else {})
    assert submit.conf.get("spark.yarn.maxAppAttempts") == ("1" if kind == "YARN cluster" else None)
    assert submit.conf["spark.yarn.queue"] == "night"


def test_settings_win_over_defaults_and_the_connection_over_settings(submit):
    own = '{"spark.sql.shuffle.partitions": 400, "spark.executor.memory": "8g", "spark.a": true}'
    submit.monkeypatch.setenv("MAILSLICE_DUTY_SPARK_CONF", own)
    submit.connect("local[*]", conf={"spark.executor.memory": "9g"})
    submit.run()
    assert submit.conf["spark.sql.shuffle.partitions"] == "400"
    assert submit.conf["spark.executor.memory"] == "9g"
    assert submit.conf["spark.a"] == "true"


def test_your_own_files_go_along(submit):
    submit.connect("yarn", **{"deploy-mode": "cluster"})
    own = {"spark.submit.pyFiles": "s3a://b/more.zip", "spark.files": "a.conf,b.conf"}
    submit.monkeypatch.setenv("MAILSLICE_DUTY_SPARK_CONF", json.dumps(own))
    submit.run()
    assert submit.conf["spark.submit.pyFiles"].endswith("/mailslice.zip,s3a://b/more.zip")
    assert submit.conf["spark.files"].endswith("/mailslice-settings.json,a.conf,b.conf")


@pytest.mark.parametrize(
    ("connection", "artifacts", "says"),
    [
        (
            {"host": "spark://m:7077", "deploy-mode": "cluster"},
            "s3a://b/p",
            r"deploy-mode cluster with the master spark://m:7077.* client alone",
        ),
        (
            {"host": "k8s://https://10.0.0.1:6443"},
            "s3a://b/p",
            "needs the package apache-airflow-providers-cncf-kubernetes",
        ),
        ({"host": "local[2]", "deploy-mode": "cluster"}, "s3a://b/p", "client alone"),
        ({"host": "yarn"}, "", r"MAILSLICE_ARTIFACTS is unset .*master is yarn.*s3a://"),
        (
            {"host": "yarn", "conf": {"spark.hadoop.fs.s3a.secret.key": SECRET}},
            "s3a://b/p",
            r"extra 'conf': spark\.hadoop\.fs\.s3a\.secret\.key would stand in command lines",
        ),
        (
            {"host": "yarn", "conf": {"spark.master": "local"}},
            "s3a://b/p",
            "spark.master is not set here",
        ),
    ],
)
def test_a_connection_that_cannot_work_is_refused_before_the_submit(
    submit, connection, artifacts, says
):
    submit.monkeypatch.setenv("MAILSLICE_ARTIFACTS", artifacts)
    submit.connect(**connection)
    with pytest.raises(AirflowFailException, match=says) as raised:
        submit.run()
    assert SECRET not in str(raised.value)
    assert not (submit.folder / "told.json").exists()


@pytest.mark.parametrize(
    ("master", "address"),
    [("local[*]", "127.0.0.1"), ("spark://127.0.0.1:7077", "127.0.0.1"), ("spark://cluster", None)],
)
def test_a_driver_on_loopback_binds_to_loopback(submit, master, address):
    submit.connect(master)
    submit.run()
    assert submit.called["environ"].get("SPARK_LOCAL_IP") == address
    assert "SPARK_LOCAL_IP" not in os.environ


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "C.UTF-8"),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, "C.UTF-8"),
        ({"LANG": "POSIX"}, "C.UTF-8"),
        ({"LC_ALL": "de_DE.utf8"}, "de_DE.utf8"),
        ({"LANG": "C.UTF-8"}, None),
    ],
)
def test_the_driver_speaks_utf_8_whatever_the_scheduler_does(submit, environ, told):
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        submit.monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        submit.monkeypatch.setenv(name, value)
    submit.run()
    assert submit.called["environ"].get("LC_ALL") == told


def leave(submit, code, message, attempt="ATTEMPT"):
    """The job leaves its word in the run's folder."""
    folder = folder_of(request_of(context(), "queue_cleanup", "spool"), load_settings())
    path = folder.artifacts.path(folder.file(OUTCOME))
    left = {"attempt": attempt, "exitCode": code, "message": message}
    submit.left = {path: json.dumps(left)}


@pytest.mark.parametrize("master", [{"host": "local[2]"}, KINDS["YARN cluster"]])
def test_a_store_that_is_away_may_be_tried_again(submit, master):
    """On a cluster spark-submit ends with 1 whatever the driver ended with."""
    submit.connect(**master)
    submit.code = 1
    leave(submit, 4, "Cassandra at 10.0.0.1 does not answer")
    says = "apply of queue 'spool': a later try may succeed: Cassandra at 10.0.0.1"
    with pytest.raises(StoreUnavailable, match=says):
        submit.run()


def test_without_a_word_the_exit_code_of_spark_submit_counts(submit):
    submit.code = 4
    with pytest.raises(StoreUnavailable, match="a later try may succeed; the lines above say why"):
        submit.run()


def test_the_word_of_an_earlier_attempt_does_not_count(submit):
    submit.code = 1
    leave(submit, 4, "Cassandra does not answer", attempt="earlier")
    with pytest.raises(AirflowFailException, match=r"failed \(exit code 1\)"):
        submit.run()


@pytest.mark.parametrize("code", [-9, 137])
def test_a_driver_that_was_killed_may_be_tried_again(submit, code):
    """137: its Python was; -9: its JVM, which ends its Python before that says why."""
    submit.code = code
    says = rf"apply of queue 'spool': .*; its driver was killed \(exit code {code}\)"
    with pytest.raises(StoreUnavailable, match=says):
        submit.run()
    submit.connect(**KINDS["YARN cluster"])
    with pytest.raises(AirflowFailException, match=r"left no word .*yarn logs -applicationId"):
        submit.run()  # it may still be at work


def on_kubernetes(submit, mode="cluster", *, code, pod_code):
    submit.monkeypatch.setattr(hook_module, "kube_client", object(), raising=False)
    submit.connect(**KINDS[f"Kubernetes {mode}"])
    submit.code, submit.pod_code = code, pod_code


@pytest.mark.parametrize("code", [0, 1])
def test_a_driver_pod_that_was_killed_may_be_tried_again_whatever_spark_submit_ended_with(
    submit, code
):
    """OOMKilled: spark-submit waits for the pod, logs its exit code, and ends with a 0 itself."""
    on_kubernetes(submit, code=code, pod_code=137)
    says = r"apply of queue 'spool': .*; its driver was killed \(exit code 137\): out of memory"
    with pytest.raises(StoreUnavailable, match=says):
        submit.run()


@pytest.mark.parametrize(
    ("mode", "code", "pod_code", "says"),
    [
        ("cluster", 0, 1, r"failed \(exit code 1\); its driver left no word"),
        ("cluster", 0, 3, "was refused"),
        ("client", 2, 0, r"failed \(exit code 2\)"),
    ],
)
def test_the_exit_code_of_a_driver_pod_precedes_that_of_spark_submit(
    submit, mode, code, pod_code, says
):
    on_kubernetes(submit, mode, code=code, pod_code=pod_code)
    with pytest.raises(AirflowFailException, match=says):
        submit.run()


def test_a_killed_spark_submit_of_a_driver_pod_is_final_for_the_pod_may_still_be_at_work(submit):
    on_kubernetes(submit, code=137, pod_code=0)
    with pytest.raises(AirflowFailException, match=r"failed \(exit code 137\); its driver left no"):
        submit.run()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (3, "was refused"),
        (2, r"failed \(exit code 2\)"),
        (1, r"failed \(exit code 1\)"),
        (-15, r"failed \(exit code -15\)"),
    ],
)
def test_every_other_failure_is_final(submit, code, says):
    submit.code = code
    with pytest.raises(AirflowFailException, match=says):
        submit.run()


def test_a_driver_that_left_no_word_on_a_cluster_is_looked_for_there(submit):
    submit.connect(**KINDS["YARN cluster"])
    submit.code = 1
    with pytest.raises(AirflowFailException, match=r"left no word .*yarn logs -applicationId"):
        submit.run()


def test_what_failed_before_the_submit_is_said(submit):
    submit.monkeypatch.delenv("KRB5CCNAME", raising=False)
    says = r"apply of queue 'spool' failed before spark-submit ran: KRB5CCNAME environment variable"
    with pytest.raises(AirflowFailException, match=says):
        submit.run(use_krb5ccache=True)


def test_a_missing_spark_submit_is_named_with_the_remedy(submit):
    submit.monkeypatch.setenv("SPARK_HOME", str(submit.folder / "none"))
    submit.monkeypatch.setenv("PATH", str(submit.folder / "none"))
    submit.monkeypatch.setattr(sys, "executable", str(submit.folder / "none" / "python"))
    with pytest.raises(AirflowFailException, match=r"spark-submit was not found.*SPARK_HOME"):
        submit.run()


@pytest.mark.parametrize("host", [None, "", "missing"])
def test_without_a_master_nothing_is_submitted_to_yarn(submit, host):
    if host == "missing":
        submit.monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    else:
        submit.connect(host)
    with pytest.raises(
        AirflowFailException, match="connection 'spark_default' is missing or names no master"
    ):
        submit.run()
    assert not (submit.folder / "told.json").exists()


SECTIONS = dict(
    re.findall(
        r"^## (.+?)\n(.*?)(?=^## |\Z)",
        (clone_root() / "docs" / "scale.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
)


def block(section, language, number=0):
    return re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)[
        number
    ]


@pytest.mark.parametrize("section", ["Local", "Standalone", "YARN", "Kubernetes", "EMR"])
def test_the_page_shows_the_settings_of_a_cluster_and_exactly_what_they_submit(submit, section):
    submit.monkeypatch.setattr(hook_module, "kube_client", object(), raising=False)
    for word in shlex.split(block(section, "sh")):
        name, _, value = word.partition("=")
        assert name in {"SPARK_HOME", "HADOOP_CONF_DIR", "AIRFLOW_CONN_SPARK_DEFAULT", *variables()}
        if name != "SPARK_HOME":  # the script is there
            submit.monkeypatch.setenv(name, value)
    submit.run(name="plan")
    places = {sys.executable: "PYTHON", str(job_file("queue_cleanup").parent): "JOBS"}
    said = shlex.join(["spark-submit", *submit.words])
    said = re.sub(r"/(?!/)[\w/-]*mailslice-submit\.\w+", "SUBMIT", said)
    for path, name in places.items():
        said = said.replace(path, name)
    own = ("--run=", "--dag-run=", "--who=", "--params=", "--attempt=")
    words = [word for word in shlex.split(said) if not word.startswith(own)]
    assert words == [word for word in shlex.split(block(section, "text")) if word != "..."]


def test_the_run_of_databricks_on_the_page_names_a_job_its_arguments_and_settings(monkeypatch):
    (task,) = json.loads(block("Databricks", "json"))["tasks"]
    job = task["spark_python_task"]
    assert job_file(Path(job["python_file"]).stem).is_file()
    environ = task["new_cluster"]["spark_env_vars"]
    assert set(environ) <= set(variables())
    for name, value in environ.items():
        monkeypatch.setenv(name, re.sub(r"{{.*}}", "amqp://u:p@10.0.0.1", value))
    step, request, settings = told_to_the_job(monkeypatch, job["parameters"])
    assert (step, request.queue, request.params) == ("plan", "spool", {"dry_run": False})
    assert settings.duty.artifacts.startswith("s3a://")
