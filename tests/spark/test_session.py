"""The Spark session.

Keys come back once, workers' errors are ours again, nothing outlives the process that started it.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from mailslice.engine import errors
from mailslice.engine.frames import InProcess, run_on_keys, shared
from mailslice.engine.row_files import PlanPart
from mailslice.engine.spark_session import spark_session
from mailslice.model.errors import MailsliceError, StoreUnavailable, TryAgain
from mailslice.model.settings import load_settings


@pytest.fixture(scope="module")
def spark():
    return spark_session(
        load_settings({"MAILSLICE_DUTY_SPARK_MASTER": "local[2]"}, Path("/nonexistent")), "tests"
    )


def squares(batches):
    for keys in batches:
        yield from (key * key for key in keys)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 17, 1000])
def test_every_key_is_worked_on_once(spark, count):
    results = run_on_keys(spark, list(range(count)), squares)
    assert sorted(results) == [number * number for number in range(count)]
    assert results == run_on_keys(InProcess(), list(range(count)), squares) or count > 2


def test_results_come_back_as_the_objects_that_they_were(spark):
    """Whatever pickles: the schema of a frame says nothing of it."""
    part = PlanPart("part.parquet", 1, 2)

    def give(batches):
        for keys in batches:
            yield from ((key, part, ("a", "b"), None) for key in keys)

    assert run_on_keys(spark, [7], give) == [(7, part, ("a", "b"), None)]


def test_a_shared_value_reaches_the_workers(spark):
    with shared(spark, {3: "three"}) as value:

        def look_up(batches):
            for keys in batches:
                yield from (value().get(key, "") for key in keys)

        assert run_on_keys(spark, [3], look_up) == ["three"]


def test_a_worker_reads_the_archives_of_spark_once_and_not_before_each_task(spark):
    """Python's importers of them, looked at anew before a task, would read the directory of
    pyspark.zip once for each package in it.
    """

    def watched(batches):
        import builtins
        import zipimport

        for _ in batches:
            pass
        read, before = zipimport._read_directory, getattr(builtins, "read_archives", None)
        if before is None:
            builtins.read_archives = before = []
            zipimport._read_directory = lambda archive: (before.append(archive), read(archive))[1]
        yield len(before)

    seen = [read for _ in range(5) for read in run_on_keys(spark, list(range(16)), watched)]
    assert len(seen) == 10
    assert max(seen) <= 2


def test_an_error_of_ours_in_a_worker_is_raised_as_itself(spark):
    def fail(batches):
        for _ in batches:
            raise StoreUnavailable("Cassandra at 10.0.0.1:9042 does not answer: x")
        yield

    with pytest.raises(
        StoreUnavailable, match=r"^Cassandra at 10\.0\.0\.1:9042 does not answer: x$"
    ):
        run_on_keys(spark, [1, 2], fail)


def test_an_error_that_is_not_ours_stays_what_it_is():
    assert errors.mailslice_error_in("Traceback ...\nValueError: no") is None
    assert errors.mailslice_error_in("Traceback ...\nmailslice.model.errors.Nonsense: no") is None
    assert isinstance(
        errors.mailslice_error_in("mailslice.model.errors.MailsliceError: yes"), MailsliceError
    )


JOB = "An error occurred while calling o47.collectToPython.\n: org.apache.spark.SparkException: "
STACK = "\n\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)" * 50


@pytest.mark.parametrize(
    "text",
    [
        "Job aborted: Lost task 0.3: ExecutorLostFailure (executor 4 exited) Reason: killed",
        "Job aborted: Python worker exited unexpectedly (crashed)",
        "Job aborted: java.lang.OutOfMemoryError: Java heap space",
        "Job aborted: org.apache.spark.shuffle.FetchFailedException: Connection reset",
        "Job aborted: java.io.IOException: No space left on device",
        "Job 3 cancelled because SparkContext was shut down",
    ],
)
def test_what_a_cluster_lost_is_tried_again(text):
    with pytest.raises(TryAgain) as raised, errors.translated_errors():
        raise Py4JError(JOB + text + STACK)
    assert str(raised.value) == f"Spark: org.apache.spark.SparkException: {text}"


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o47.collectToPython"),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
def test_a_jvm_that_was_killed_is_tried_again(error):
    with pytest.raises(TryAgain) as raised, errors.translated_errors():
        raise error
    assert str(raised.value) == f"Spark: {type(error).__name__}: {error}"


def test_an_error_in_a_task_and_a_wrong_call_of_java_are_no_loss_of_a_cluster():
    for text in (
        f"{JOB}Job aborted: Traceback:\nValueError: no{STACK}",
        f"{JOB}x. Trace:\npy4j.Py4JException: no{STACK}",
        "org.apache.spark.api.python.PythonSQLUtils does not exist in the JVM",
    ):
        with pytest.raises(Py4JError), errors.translated_errors():
            raise Py4JError(text)


def test_the_session_is_utc_quiet_and_one_for_the_process(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark_session(load_settings({}, Path("/nonexistent")), "again") is spark


SLEEPER = textwrap.dedent(
    """
    import pathlib
    from mailslice.model.settings import load_settings
    from mailslice.engine.frames import run_on_keys
    from mailslice.engine.spark_session import spark_session

    def sleep(batches):
        import time
        for _ in batches:
            print("working", flush=True)
            time.sleep(300)
        yield

    settings = load_settings({}, pathlib.Path("/nonexistent"))
    run_on_keys(spark_session(settings, "sleeper"), [1, 2], sleep)
    """
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_jvm_and_no_worker_outlives_its_process(tmp_path, how):
    """With nothing on PATH and no JAVA_HOME: Java and pyspark are found by themselves."""
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    environ = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        children = _wait_for_workers(process)
        os.kill(process.pid, how)
        process.wait(30)
        _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def _wait_for_workers(process) -> list[psutil.Process]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        children = psutil.Process(process.pid).children(recursive=True)
        if sum("pyspark.daemon" in " ".join(_command(child)) for child in children) >= 2:
            return children
        time.sleep(0.3)
    raise AssertionError("no Python worker came up")


def _command(child: psutil.Process) -> list[str]:
    try:
        return child.cmdline()
    except psutil.Error:
        return []


KILLED = textwrap.dedent(
    """
    import pathlib, psutil
    from mailslice.model.settings import load_settings
    from mailslice.engine.frames import run_on_keys
    from mailslice.engine.spark_session import spark_session

    def same(batches):
        for keys in batches:
            yield from keys

    settings = load_settings({}, pathlib.Path("/nonexistent"))
    for name in ("first", "second"):
        print(run_on_keys(spark_session(settings, name), [7], same), flush=True)
        children = psutil.Process().children()
        for child in children:
            child.kill()
        psutil.wait_procs(children)
    """
)


@pytest.mark.soak
def test_a_process_whose_jvm_was_killed_starts_another(tmp_path):
    """As webadmin, which does one task after the other."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    environ = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["[7]", "[7]"], done.stderr


GRACEFUL = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n" + SLEEPER


@pytest.mark.parametrize("seconds", [0.0, 0.7, 1.5])
def test_no_jvm_stays_when_its_process_is_asked_to_end_while_it_comes_up(tmp_path, seconds):
    """The command line ends by an exception on SIGTERM, so that pyspark cleans up under the JVM's
    feet.
    """
    script = tmp_path / "sleeper.py"
    script.write_text(GRACEFUL)
    environ = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not psutil.Process(process.pid).children():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGTERM)
        process.wait(30)
        deadline = time.monotonic() + 30
        while _with_word(str(tmp_path)):
            assert time.monotonic() < deadline, [
                " ".join(_command(left))[:200] for left in _with_word(str(tmp_path))
            ]
            time.sleep(0.2)


def _with_word(word: str) -> list[psutil.Process]:
    return [
        found for found in psutil.process_iter() if any(word in part for part in _command(found))
    ]
