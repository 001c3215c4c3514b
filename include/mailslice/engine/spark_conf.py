"""The Spark options that mailslice sets, by kind of master.

A local master gets small defaults. A cluster keeps its own options, but for those a duty needs.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path

NEEDED: Mapping[str, str] = {
    # Times in plans are UTC.
    "spark.sql.session.timeZone": "UTC",
    # A batch is what a task acts on at once.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "256",
}
"""Set on every master; a cluster's own values do not count."""
SMALL: Mapping[str, str] = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "8"}
"""Set on a local master, unless MAILSLICE_DUTY_SPARK_CONF or Airflow's connection sets them."""
PY_FILES = "spark.submit.pyFiles"
PYTHON = "spark.pyspark.python"


def is_local(master: str) -> bool:
    """Whether executors are threads of the driver's JVM."""
    return master.startswith("local")


def on_loopback(master: str) -> bool:
    """Whether driver and executors can meet on 127.0.0.1."""
    return is_local(master) or "//127.0.0.1" in master


def added(own: str | None, file: str) -> str:
    """Spark's comma-separated list of files, with `file` put first."""
    return f"{file},{own}" if own else file


def zip_package(folder: Path) -> Path:
    """The package as `folder`/mailslice.zip, for `--py-files`; the zip that it runs from if any."""
    root = Path(__file__).resolve().parents[1]
    if not root.is_dir():
        return root.parent
    target = folder / "mailslice.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, root.name / file.relative_to(root))
    return target
