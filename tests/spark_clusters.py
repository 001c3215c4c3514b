"""Spark clusters of a test's own, whose nodes see neither the clone nor its .venv.

A node has a Spark, a Java and a base Python. What else a job needs comes with the submit: the
package as a zip, and an archive of the packages that it imports.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

from mailslice.model.settings import clone_root
from stack.parts import java, java_home
from stack.settings import Profile, stack_settings
from stack.yarn import PORTS, yarn
from tests.ports import free_port, free_ports

PYTHON = "./environment/bin/python"
BASE_PYTHON = "/usr/bin/python3.11"
"""On every node: the Python of an archive is a link to it."""
UNUSED = re.compile(r"/(?:tests|include|botocore/data/(?!s3\b)[^/.]+)$")
"""Folders that no executor reads. YARN starts a `chmod` for each file of an archive."""
MOUNTS = 'for folder in $HIDDEN; do mount -t tmpfs none "$folder" || exit 1; done; exec "$@"'


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that every user may read: pytest's are of their owner alone."""
    with TemporaryDirectory(prefix="mailslice-clusters-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def hidden(command: Sequence[str], *, nobody: bool = False) -> list[str]:
    """The command where clone and .venv are empty folders, as the user `nobody` where asked."""
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if nobody else []
    folders = {str(clone_root()), *([] if _inside(sys.prefix) else [sys.prefix])}
    names = f"HIDDEN={' '.join(sorted(folders))}"
    return ["env", names, "unshare", "--mount", "sh", "-c", MOUNTS, "sh", *user, *command]


def _inside(folder: str) -> bool:
    return Path(folder).is_relative_to(clone_root())


def archive(folder: Path) -> Path:
    """`folder`/environment.tar.gz: a venv with what executors import, without mailslice."""
    project = tomllib.loads((clone_root() / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras = project["optional-dependencies"]
    packages = [*project["dependencies"], *extras["worker"], "pyarrow", "pandas", "psutil"]
    uv = [str(Path(sys.executable).parent / "uv"), "--quiet"]
    place = folder / "venv"
    pins = str(clone_root() / "requirements.txt")
    subprocess.run([*uv, "venv", "--python", BASE_PYTHON, str(place)], check=True)
    install = ["pip", "install", "--python", str(place / "bin" / "python"), "--constraints", pins]
    subprocess.run([*uv, *install, *packages], check=True)
    target = folder / "environment.tar.gz"
    with tarfile.open(target, "w:gz", compresslevel=1) as tar:
        tar.add(place, ".", filter=lambda entry: None if UNUSED.search(entry.name) else entry)
    shutil.rmtree(place)
    return target


def spark_of_nodes(folder: Path) -> Path:
    """Spark as every node has it, outside the clone."""
    home = folder / "spark"
    for part in ("bin", "jars", "python"):
        shutil.copytree(Path(pyspark.__file__).parent / part, home / part, dirs_exist_ok=True)
    return home


@contextmanager
def standalone(folder: Path, home: Path, *, workers: int = 2) -> Iterator[str]:
    """A master, and workers of one core each under the user `nobody`; the master's URL."""
    port, work = free_port(), folder / "work"
    work.mkdir()
    shutil.chown(work, "nobody", "nogroup")
    environ = {
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.12",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HOME": str(work),
    }
    command = [str(java()), "-Xmx256m", "-cp", f"{home}/jars/*"]
    deploy = "org.apache.spark.deploy"
    place = ["--host", "127.0.0.1", "--webui-port", "0"]
    master = [*command, f"{deploy}.master.Master", *place, "--port", str(port)]
    url = f"spark://127.0.0.1:{port}"
    size = ["--cores", "1", "--memory", "1g", "--work-dir", str(work)]
    worker = [*command, f"{deploy}.worker.Worker", *place, *size, url]
    with ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(running(hidden(master, nobody=True), environ, log))
        _until("a Spark master", lambda: "I have been elected leader" in log.read_text(), log)
        for number in range(workers):
            log = folder / f"worker{number}.log"
            stack.enter_context(running(hidden(worker, nobody=True), environ, log))
            _until("a Spark worker", _said("Successfully registered", log), log)
        yield url


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[Path]:
    """A ResourceManager and a NodeManager; the folder that HADOOP_CONF_DIR names.

    The NodeManager is of this user: with files of this machine it must read what a client sends.
    """
    programs = yarn(folder, free_ports(PORTS), stack_settings(Profile.TEST).sizes)
    with ExitStack() as stack:
        for program in programs:
            environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **program.environment}
            log = folder / f"{program.name}.log"
            stack.enter_context(running(hidden(program.command), environ, log))
            _until(program.name, lambda program=program: program.healthy() is None, log)
        yield folder / "conf"


@contextmanager
def running(command: Sequence[str], environ: Mapping[str, str], log: Path) -> Iterator[None]:
    """The command, until the end of the block."""
    with (
        log.open("ab") as out,
        subprocess.Popen(
            command, cwd=log.parent, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        ) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _said(words: str, log: Path) -> Callable[[], bool]:
    return lambda: words in log.read_text()


def _until(what: str, done: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 180
    while not done():
        assert time.monotonic() < deadline, f"{what} did not start: {log.read_text()[-2000:]}"
        time.sleep(0.3)


def sent_with(packages: Path, **more: object) -> dict[str, object]:
    """The options that a submit to any of them has."""
    return {
        "spark.archives": f"{packages}#environment",
        "spark.pyspark.python": PYTHON,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": 1,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def usable() -> str | None:
    """None where these clusters can run, else why not."""
    if os.geteuid() != 0:
        return "root alone may hide folders from a process"
    if not Path(BASE_PYTHON).exists():
        return f"there is no {BASE_PYTHON}"
    return None
