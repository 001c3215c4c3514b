"""Spark clusters of tests, whose nodes see neither the clone nor its .venv.

A node has Spark, Java and a base Python. The submit brings everything else that a job needs: the
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
"""The Python of every node. The Python in an archive is a link to it."""
UNUSED = re.compile(r"/(?:tests|include|botocore/data/(?!s3\b)[^/.]+)$")
"""Folders that no executor reads, left out as YARN starts a `chmod` for each archived file."""
MOUNTS = 'for folder in $HIDDEN; do mount -t tmpfs none "$folder" || exit 1; done; exec "$@"'


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that every user may read. Only their owner may read pytest's folders."""
    with TemporaryDirectory(prefix="mailslice-clusters-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def hidden(command: Sequence[str], *, nobody: bool = False) -> list[str]:
    """The command changed so that it sees clone and .venv empty; `nobody`: as the user `nobody`."""
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if nobody else []
    folders = {str(clone_root()), *([] if _inside(sys.prefix) else [sys.prefix])}
    names = f"HIDDEN={' '.join(sorted(folders))}"
    return ["env", names, "unshare", "--mount", "sh", "-c", MOUNTS, "sh", *user, *command]


def _inside(folder: str) -> bool:
    return Path(folder).is_relative_to(clone_root())


def archive(folder: Path) -> Path:
    """Makes `folder`/environment.tar.gz: a venv of all that executors import, without mailslice."""
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
    """Copies Spark out of the clone, for all nodes; returns its home."""
    home = folder / "spark"
    for part in ("bin", "jars", "python"):
        shutil.copytree(Path(pyspark.__file__).parent / part, home / part, dirs_exist_ok=True)
    return home


@contextmanager
def standalone(folder: Path, home: Path, *, workers: int = 2) -> Iterator[str]:
    """Runs a master, and workers of one core each, as user `nobody`. Gives the master's URL."""
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
    """Runs a ResourceManager and a NodeManager. Gives the folder for HADOOP_CONF_DIR.

    The NodeManager runs as this user, because it must read the local files that a client sends.
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
    """Runs the command until the end of the block."""
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
    """The options that every submit to these clusters needs."""
    return {
        "spark.archives": f"{packages}#environment",
        "spark.pyspark.python": PYTHON,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": 1,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def usable() -> str | None:
    """None if these clusters can run here; otherwise the reason why not."""
    if os.geteuid() != 0:
        return "root alone may hide folders from a process"
    if not Path(BASE_PYTHON).exists():
        return f"there is no {BASE_PYTHON}"
    return None
