"""The Spark session of this process, by spark-submit's master and conf, else by the settings.

Without spark-submit pyspark starts a JVM whose standard input is a pipe from this process. When the
process ends, in whatever way, the pipe closes, and the JVM ends with its Python workers.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import util
from pathlib import Path

import psutil
from pyspark import SparkContext
from pyspark.sql import SparkSession

from mailslice.engine.scratch import scratch_folder
from mailslice.engine.spark_conf import (
    NEEDED,
    PY_FILES,
    PYTHON,
    SMALL,
    added,
    is_local,
    on_loopback,
    zip_package,
)
from mailslice.model.errors import BadInput
from mailslice.model.settings import Settings

_JAVA_PATTERNS = (
    "/usr/lib/jvm/*17*/bin/java",
    "/usr/lib/jvm/*/bin/java",
    "/opt/java/*/bin/java",
    "/opt/jdk*/bin/java",
)
# The root stays at WARN: Spark's shell mode announces any other level on stderr.
_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex{3}
logger.org.name = org
logger.org.level = off
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = warn
"""

_STARTED: list[SparkSession] = []


def spark_session(settings: Settings, name: str) -> SparkSession:
    """The session, started at the first call. Raises BadInput with the remedy without Java."""
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if process is not None and process.poll() is not None:  # the JVM died; webadmin goes on
        _STARTED.clear()
        for known in ("_active_spark_context", "_gateway", "_jvm"):
            setattr(SparkContext, known, None)
        SparkSession._instantiatedSession = None  # noqa: SLF001
    # `_jsc` is None once the session was stopped; there is no public way to ask.
    if _STARTED and _STARTED[0].sparkContext._jsc is not None:  # noqa: SLF001
        return _STARTED[0]
    _STARTED.clear()
    # spark-submit chose master, Python and memory; Databricks has also started a session.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or SparkSession.getActiveSession() is not None
    options = dict(NEEDED) if submitted else _options(settings, _scratch())
    if not submitted:
        _find_java()
        os.environ["PYSPARK_SUBMIT_ARGS"] = "pyspark-shell"
        _choose_python(settings.duty.spark_master, options.get(PYTHON))
    builder = SparkSession.builder.appName(name)
    for key, value in options.items():
        builder = builder.config(key, value)
    with _no_half_started_jvm():
        session = builder.getOrCreate()
    _STARTED.append(session)
    return session


def _choose_python(master: str, chosen: str | None) -> None:
    """Executors on this machine use this Python. Those of a cluster use `chosen`.

    Spark does not read `spark.pyspark.python` where Python starts the JVM.
    """
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif chosen:
        os.environ["PYSPARK_PYTHON"] = chosen
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


@contextmanager
def _no_half_started_jvm() -> Iterator[None]:
    """Kills the JVM whose start is interrupted: it would outlive even the closed pipe."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    try:
        yield
    except BaseException:
        for process in psutil.Process().children(recursive=True):
            if process.pid not in before:
                with suppress(psutil.Error):
                    process.kill()
        raise


def _options(settings: Settings, scratch: Path) -> dict[str, str]:
    """The options of a session that this process starts."""
    duty, own = settings.duty, dict(settings.duty.spark_conf)
    options = {
        "spark.master": duty.spark_master,
        "spark.ui.showConsoleProgress": "false",
        # Unused, but by default Spark would create the folder in the current directory.
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
    }
    jvm = []
    if is_local(duty.spark_master):
        log = (scratch / "log4j2.properties").as_uri()
        jvm = [f"-Dlog4j2.configurationFile={log}", "-XX:+UseSerialGC"]
        jvm.append(f"-Dderby.system.home={scratch}")
        # Failures are raised, in a line or two. A cluster's warnings say what it waits for.
        options |= {**SMALL, "spark.local.dir": str(scratch / "spark"), "spark.log.level": "OFF"}
    else:
        options[PY_FILES] = added(own.pop(PY_FILES, None), str(zip_package(scratch)))
    if on_loopback(duty.spark_master):
        options |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if is_local(duty.spark_master) or "spark_driver_memory" in duty.model_fields_set:
        options["spark.driver.memory"] = duty.spark_driver_memory
    if jvm or duty.spark_driver_options:
        options["spark.driver.extraJavaOptions"] = " ".join([*jvm, duty.spark_driver_options])
    return {**options, **own, **NEEDED}


def _scratch() -> Path:
    """A folder of this process, removed at its end."""
    scratch = scratch_folder("mailslice-spark")
    (scratch / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return scratch


def _find_java() -> None:
    """Set JAVA_HOME and SPARK_HOME if missing: a command that is called by its path works, too."""
    spec = util.find_spec("pyspark")
    if spec is not None and spec.origin:
        os.environ.setdefault("SPARK_HOME", str(Path(spec.origin).parent))
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").is_file()) or shutil.which("java"):
        return
    for pattern in _JAVA_PATTERNS:
        for java in sorted(Path("/").glob(pattern.lstrip("/"))):
            os.environ["JAVA_HOME"] = str(java.parent.parent)
            return
    raise BadInput(
        "no Java was found for Spark (looked at JAVA_HOME, PATH and /usr/lib/jvm). "
        "Remedy: apt-get install -y openjdk-17-jre-headless"
    )
