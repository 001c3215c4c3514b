"""The Spark session of this process: of spark-submit's master and conf, else of the settings.

Without spark-submit pyspark starts a JVM whose standard input is a pipe from this process. When the
process ends, in whatever way, the pipe closes, and the JVM ends with its Python workers.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from mailslice.model.errors import BadInput
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_PLACES = (
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
    from pyspark.sql import SparkSession

    # `_jsc` is None once the session was stopped; there is no public way to ask.
    if _STARTED and _STARTED[0].sparkContext._jsc is not None:  # noqa: SLF001
        return _STARTED[0]
    _STARTED.clear()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        _find_java()
        os.environ["PYSPARK_SUBMIT_ARGS"] = "pyspark-shell"
    # Executors on this machine use this Python. A cluster on other machines names its own:
    # spark.pyspark.python or PYSPARK_PYTHON.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    scratch = _scratch()
    builder = SparkSession.builder.appName(name)
    for key, value in _defaults(settings, scratch, submitted).items():
        builder = builder.config(key, value)
    with _no_half_started_jvm():
        session = builder.getOrCreate()
    if not submitted:
        session.sparkContext.setLogLevel(
            "OFF"
        )  # what fails is raised, in a line or two; a job under spark-submit logs as its conf says
    _STARTED.append(session)
    return session


@contextmanager
def _no_half_started_jvm() -> Iterator[None]:
    """Kills the JVM when its start is interrupted (Ctrl-C, SIGTERM).

    A JVM that cannot report its port would outlive even the closed pipe.
    """
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    try:
        yield
    except BaseException:
        for process in psutil.Process().children(recursive=True):
            if process.pid not in before:
                with suppress(psutil.Error):
                    process.kill()
        raise


def _defaults(settings: Settings, scratch: Path, submitted: bool) -> dict[str, str]:
    log = (scratch / "log4j2.properties").as_uri()
    options = f"-Dlog4j2.configurationFile={log} -XX:+UseSerialGC -Dderby.system.home={scratch}"
    package_root = str(Path(__file__).resolve().parents[2])
    values = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "256",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(
            dict.fromkeys([package_root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        ).strip(os.pathsep),
    }
    if not submitted:
        values |= {
            "spark.master": settings.duty.spark_master,
            "spark.driver.memory": settings.duty.spark_driver_memory,
            # Executors elsewhere must reach the driver.
            "spark.driver.bindAddress": (
                "127.0.0.1" if _local(settings) else "0.0.0.0"  # noqa: S104
            ),
            "spark.local.dir": str(scratch / "spark"),
            "spark.driver.extraJavaOptions": (
                f"{options} {settings.duty.spark_driver_options}".strip()
            ),
        }
        if _local(settings):
            values["spark.driver.host"] = "127.0.0.1"
    return values


def _local(settings: Settings) -> bool:
    return (
        settings.duty.spark_master.startswith("local")
        or "//127.0.0.1" in settings.duty.spark_master
    )


def _scratch() -> Path:
    """A folder of this process, removed at its end. The next start removes those of killed ones."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob("mailslice-spark-*"):
        pid = old.name.rsplit("-", 2)[-2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(old, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"mailslice-spark-{os.getpid()}-"))
    (scratch / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return scratch


def _find_java() -> None:
    """Set JAVA_HOME and SPARK_HOME when the environment lacks them: commands work by path."""
    spec = util.find_spec("pyspark")
    if spec is not None and spec.origin:
        os.environ.setdefault("SPARK_HOME", str(Path(spec.origin).parent))
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").is_file()) or shutil.which("java"):
        return
    for pattern in _JAVA_PLACES:
        for java in sorted(Path("/").glob(pattern.lstrip("/"))):
            os.environ["JAVA_HOME"] = str(java.parent.parent)
            return
    raise BadInput(
        "no Java was found for Spark (looked at JAVA_HOME, PATH and /usr/lib/jvm). "
        "Remedy: apt-get install -y openjdk-17-jre-headless"
    )
