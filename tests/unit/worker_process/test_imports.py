"""The worker image has no Airflow, Spark or Great Expectations. Help imports no driver."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mailslice.worker

HEAVY = ("airflow", "pyspark", "great_expectations", "pandas", "pyarrow", "matplotlib", "numpy")
DRIVERS = ("cassandra", "pika", "boto3", "botocore", "obstore", "httptools", "aiosmtpd")
GUARD = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {banned!r}:
            raise ImportError(name + " is not in the worker image")
sys.meta_path.insert(0, Guard())
"""


def run(banned: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", GUARD.format(banned=set(banned)) + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_guard_guards() -> None:
    assert "airflow is not in the worker image" in run(HEAVY, "import airflow").stderr


def test_every_module_of_the_worker_comes_without_airflow_spark_and_gx() -> None:
    modules = [
        info.name for info in pkgutil.walk_packages(mailslice.worker.__path__, "mailslice.worker.")
    ]
    assert {
        "mailslice.worker.process.consumer_task",
        "mailslice.worker.smtp_server.server",
        "mailslice.worker.handlers.relay",
        "mailslice.worker.queue_worker",
    } <= set(modules)
    done = run(
        HEAVY,
        "import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in modules),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["worker", "--help"],
        ["worker", "run", "--help"],
        ["worker", "smtp-in", "--help"],
        ["duty", "--help"],
        ["nonsense"],
    ],
)
def test_help_and_a_wrong_word_need_neither_those_nor_a_driver(words: list[str]) -> None:
    done = run(
        (*HEAVY, *DRIVERS),
        f"sys.argv = ['mailslice', *{words!r}]\nfrom mailslice.cli.main import main\nmain()",
    )
    assert done.returncode == (2 if words == ["nonsense"] else 0), done.stderr
    assert "not in the worker image" not in done.stderr


def test_a_worker_holds_neither_numpy_nor_boto3_in_memory() -> None:
    code = (
        "from mailslice.stores.cassandra.lean import without_numpy\nwithout_numpy()\n"
        "import mailslice.worker.queue_worker, cassandra.protocol as p"
    )
    shown = (
        "[name for name in ('numpy', 'boto3', 'botocore') if name in sys.modules], "
        "p.ProtocolHandler.__name__, p.NumpyProtocolHandler"
    )
    done = run((), f"{code}\nprint({shown})")
    assert done.stdout.split() == ["[]", "CythonProtocolHandler", "None"], done.stderr


DECISION = """
from mailslice.cli.queue_session import record
from mailslice.model.settings import load_settings
settings = load_settings({"MAILSLICE_ARTIFACTS": sys.argv[1]})
record(settings, "queue create", "spool", "a test")
"""


def test_a_decision_is_kept_without_pyarrow(tmp_path: Path) -> None:
    done = run(HEAVY, DECISION.replace("sys.argv[1]", repr(str(tmp_path))))
    assert (done.returncode, done.stderr) == (0, "")
    (kept,) = tmp_path.glob("decisions/*/*.json")
    assert json.loads(kept.read_text(encoding="utf-8"))["reason"] == "a test"


CHILD = """
from pathlib import Path
from mailslice.model.settings import load_settings
from mailslice.worker.process.child import main
from mailslice.worker.process.consumer_task import ConsumerTask
from mailslice.worker.dequeue.strikes import InHandlers, StrikeState
class Pipe:
    def send(self, news):
        if isinstance(news, tuple):
            drivers = ("cassandra.cluster", "boto3", "numpy")
            loaded = [name for name in drivers if name in sys.modules]
            print("exit code", news[1], loaded, flush=True)
    def poll(self, seconds):
        return False
settings = load_settings({}, state_file=Path("/nonexistent"))
task = ConsumerTask(settings, "spool", "no.such:handler", 1, 1)
main(task, Pipe(), bytearray(InHandlers.size(1)), StrikeState())
"""


def test_a_consuming_process_has_the_driver_and_neither_boto3_nor_numpy() -> None:
    done = run((), CHILD)
    first_line = done.stdout.split("\n")[0]
    assert (done.returncode, first_line) == (1, "exit code 2 ['cassandra.cluster']"), done.stderr


def test_numpy_that_is_there_stays_with_the_driver() -> None:
    code = (
        "import numpy\nfrom mailslice.stores.cassandra.lean import without_numpy\n"
        "without_numpy()\nimport cassandra.protocol as p"
    )
    done = run((), f"{code}\nprint(p.NumpyProtocolHandler is not None)")
    assert done.stdout.split() == ["True"], done.stderr
