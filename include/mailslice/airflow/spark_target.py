"""The Spark master to which Airflow submits a step, and the Spark options, by kind of cluster.

Options of the settings and the connection win over the few that are set here. Options that a
cluster sets better are not set here (docs/scale.md, ADR 78).
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk import Connection
from pydantic import TypeAdapter, ValidationError

from mailslice.engine.spark_conf import PY_FILES, SMALL, added, is_local, on_loopback, zip_package
from mailslice.maintenance.submission import SETTINGS_FILE, write_settings
from mailslice.model.errors import BadInput, BadSetting
from mailslice.model.settings import Settings
from mailslice.model.spark_conf import SparkConf

_CONF: TypeAdapter[tuple[tuple[str, str], ...]] = TypeAdapter(SparkConf)


@dataclass(frozen=True, slots=True)
class Target:
    """A master, whether the driver runs on its cluster, and options of settings and connection."""

    master: str
    in_cluster: bool
    """Whether the driver runs on the cluster (deploy-mode cluster)."""
    own: Mapping[str, str]
    jobs: str | None = None
    """The folder of the job files where the driver runs, if it is not the one here."""

    @property
    def is_yarn(self) -> bool:
        return self.master.startswith("yarn")

    @property
    def is_kubernetes(self) -> bool:
        return self.master.startswith("k8s")

    @property
    def is_image(self) -> bool:
        """Whether driver and executors are pods, which get image and secrets from the cluster."""
        return self.is_kubernetes and self.in_cluster

    def application(self, file: str) -> str:
        """The path for spark-submit of the job file that is `file` here."""
        return f"{self.jobs.rstrip('/')}/{Path(file).name}" if self.jobs else file

    def settings_argument(self, settings: Settings, folder: Path) -> str | None:
        """Write the settings file; returns the driver's path to it. None if it needs no file."""
        if self.is_image:
            return None
        file = write_settings(settings, folder)
        return file.name if self.in_cluster else str(file)

    def options(self, folder: Path) -> dict[str, str]:
        """The Spark options of one submit. `folder` has the files that are sent with it."""
        options = {"spark.log.level": "WARN", "spark.ui.showConsoleProgress": "false"}
        own = dict(self.own)
        if not self.in_cluster:
            # Not used. Spark would make the folder in Airflow's working directory.
            options["spark.sql.warehouse.dir"] = (folder / "warehouse").as_uri()
        if is_local(self.master):
            return {**options, **SMALL, **own}
        if not self.in_cluster:
            options["spark.pyspark.driver.python"] = sys.executable
        if not self.is_image:
            options[PY_FILES] = added(own.pop(PY_FILES, None), str(zip_package(folder)))
        if self.is_yarn and self.in_cluster:
            files = own.pop("spark.files", None)
            options["spark.files"] = added(files, str(folder / SETTINGS_FILE))
            # Airflow retries. YARN would retry also a step that was refused.
            options["spark.yarn.maxAppAttempts"] = "1"
        # spark-submit waits for the end of the driver.
        if self.is_yarn:
            own["spark.yarn.submit.waitAppCompletion"] = "true"
        if self.is_kubernetes:
            own["spark.kubernetes.submission.waitAppCompletion"] = "true"
        return {**options, **own}

    def environment(self) -> dict[str, str]:
        """Variables of spark-submit, and of a driver on this machine."""
        spec = util.find_spec("pyspark")
        home = os.environ.get("SPARK_HOME") or str(Path(str(spec.origin)).parent if spec else "")
        binaries = (str(Path(home) / "bin") if home else "", str(Path(sys.executable).parent))
        paths = (*binaries, os.environ.get("PATH", ""))
        values = {"PATH": os.pathsep.join(filter(None, paths)), **_locale()}
        if home:
            values["SPARK_HOME"] = home
        if is_local(self.master):
            root = str(Path(__file__).resolve().parents[2])
            modules = (root, os.environ.get("PYTHONPATH", ""))
            values |= {
                "PYTHONPATH": os.pathsep.join(filter(None, modules)),
                "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            }
        if on_loopback(self.master):
            # The machine's name may resolve to an unreachable address; loopback needs none.
            values["SPARK_LOCAL_IP"] = "127.0.0.1"
        return values


def target_of(connection: Connection, settings: Settings) -> Target:
    """The target of the connection. Raises BadInput, BadSetting for one that cannot work."""
    extra: dict[str, Any] = connection.extra_dejson
    host = str(connection.host)
    host_is_master = connection.conn_type == "spark" and ("://" in host or not connection.port)
    master = host if host_is_master else f"{connection.conn_type}://{host}"
    in_cluster = extra.get("deploy-mode") == "cluster"
    if in_cluster and (is_local(master) or master.startswith("spark")):
        raise BadInput(
            f"the Airflow connection {connection.conn_id!r}: deploy-mode cluster with the master "
            f"{master}: Spark runs Python drivers there in deploy-mode client alone"
        )
    if master.startswith("k8s") and not hasattr(spark_submit, "kube_client"):
        raise BadInput(
            f"the Airflow connection {connection.conn_id!r}: the master {master} needs the package "
            "apache-airflow-providers-cncf-kubernetes beside Airflow; install it"
        )
    if not is_local(master) and not settings.duty.artifacts:
        raise BadSetting(
            f"MAILSLICE_ARTIFACTS is unset ({settings.where('MAILSLICE_ARTIFACTS')}), and Spark's "
            f"master is {master}: executors write plans there. Set it to s3a://BUCKET/PREFIX, or "
            "to a folder that all of them share"
        )
    try:
        conf = _CONF.validate_python(extra.get("conf") or ())
    except ValidationError as error:
        raise BadInput(
            f"the Airflow connection {connection.conn_id!r}, extra 'conf': "
            f"{error.errors(include_input=False)[0]['msg']}"
        ) from None
    jobs = extra.get("jobs")
    target = Target(master, in_cluster, {**dict(settings.duty.spark_conf), **dict(conf)}, jobs)
    if target.is_image and not jobs:
        raise BadInput(
            f"the Airflow connection {connection.conn_id!r}: a driver in a pod has its jobs in the "
            "image; name their folder in the extra 'jobs', such as "
            "local:///usr/local/lib/python3.11/site-packages/mailslice/jobs"
        )
    return target


def _locale() -> dict[str, str]:
    """LC_ALL for a driver whose environment has no UTF-8 locale: the JVM would garble names."""
    chosen = next(
        (os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), ""
    )
    return {} if re.search(r"utf-?8", chosen, re.IGNORECASE) else {"LC_ALL": "C.UTF-8"}
