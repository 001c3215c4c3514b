"""The mail queue of a real James as a local process, for tests and the benchmark.

Apache publishes James' libraries, not its server. `files/james` wires the libraries as the server
does; its S3 client alone is ours.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mailslice.model.setting_groups import BlobStrategy
from mailslice.model.settings import Settings
from stack.parts import java, part
from stack.program import FILES, CannotStart, write_file
from stack.settings import Profile, Sizes, stack_settings

_SOURCES = ("JamesNode.java", "S3Objects.java")
_START_SECONDS = 120
_ANSWER_SECONDS = 120


class JamesError(Exception):
    """A request failed in James; the text names the error and its causes."""


class JamesNode:
    """One James. Every method is one call of James' `ManageableMailQueue`.

    A mail is a dict: name, sender (None = null sender), recipients, attributes (name -> James'
    JSON as text), state, errorMessage, remoteAddr, remoteHost, lastUpdated (ms since the epoch),
    headers (list of [recipient, name, value]) and mime (bytes).
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        if process.stdin is None or process.stdout is None:
            raise ValueError("the process has no pipes")
        self._requests, self._answers = process.stdin, process.stdout
        self._answer(_START_SECONDS)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def call(self, operation: str, queue: str = "spool", **fields: object) -> dict[str, Any]:
        """Sends one request and gives its answer. Raises JamesError."""
        request = {"operation": operation, "queue": queue, **fields}
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        return self._answer(_ANSWER_SECONDS)

    def create(self, queue: str = "spool") -> None:
        """Creates the queue where it is missing, and registers its start, as James' start does."""
        self.call("create", queue)

    def enqueue(self, *mails: Mapping[str, Any], queue: str = "spool", **fields: int) -> float:
        """Enqueues mails, `inFlight` at once, each `copies` times; gives the seconds it took."""
        written = [{**mail, "mime": base64.b64encode(mail["mime"]).decode()} for mail in mails]
        return float(self.call("enqueue", queue, mails=written, **fields)["seconds"])

    def dequeue(
        self, count: int, outcome: str = "SUCCESS", queue: str = "spool", **fields: object
    ) -> list[dict[str, Any]]:
        """Takes mails until `count` have the outcome or none comes for `idle` ms.

        Without `idle` it waits 20 s.
        """
        answer = self.call("dequeue", queue, count=count, outcome=outcome, **fields)
        return _read(answer["mails"])

    def browse(self, queue: str = "spool") -> list[dict[str, Any]]:
        """The waiting mails, with their contents."""
        return _read(self.call("browse", queue)["mails"])

    def size(self, queue: str = "spool") -> int:
        """The number of waiting mails."""
        return int(self.call("size", queue)["size"])

    def remove(self, kind: str, value: str, queue: str = "spool") -> None:
        """Deletes mails by `Sender`, `Recipient` or `Name`."""
        self.call("remove", queue, type=kind, value=value)

    def _answer(self, seconds: float) -> dict[str, Any]:
        guard = threading.Timer(seconds, self._process.kill)
        guard.start()
        try:
            line = self._answers.readline()
        finally:
            guard.cancel()
        if not line:
            raise JamesError(f"James ended or did not answer:\n{self._log.read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise JamesError(answer["error"])
        return answer


@contextmanager
def james_node(settings: Settings, folder: Path, **properties: object) -> Iterator[JamesNode]:
    """A James on the stores of these settings; `properties` are James' own and come first.

    Raises JamesError if James refuses to start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = _command(
        stack_settings(Profile.TEST).sizes, folder, {**_properties(settings), **properties}
    )
    log = folder / "james.log"
    with (
        log.open("ab") as err,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True
        ) as process,
    ):
        try:
            yield JamesNode(process, log)
        finally:
            process.kill()


def _properties(settings: Settings) -> dict[str, object]:
    """What the property files of a James on the same stores say."""
    management = urlsplit(settings.rabbitmq.management_url.get_secret_value())
    [host] = settings.cassandra.contact_points
    keys = settings.s3.secret_key
    return {
        "cassandra.nodes": f"{host}:{settings.cassandra.port}",
        "cassandra.keyspace": settings.cassandra.keyspace,
        "cassandra.local.dc": "datacenter1",
        # James asks the management API for vhost %2F, which is not there, where the URI names it.
        "uri": settings.rabbitmq.url.get_secret_value().removesuffix("/%2F"),
        "management.uri": f"http://{management.hostname}:{management.port}",
        "management.user": management.username,
        "management.password": management.password,
        "objectstorage.s3.endPoint": settings.s3.endpoint,
        "objectstorage.s3.region": settings.s3.region,
        "objectstorage.s3.accessKeyId": settings.s3.access_key,
        "objectstorage.s3.secretKey": keys.get_secret_value() if keys else None,
        "bucket": settings.s3.bucket,
        "deduplication.enable": settings.blob.strategy is BlobStrategy.DEDUPLICATION,
        "deduplication.gc.generation.duration": _seconds(settings.blob.generation_duration),
        "mailqueue.view.sliceWindow": _seconds(settings.queue.slice_window),
        "mailqueue.view.bucketCount": settings.queue.bucket_count,
    }


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.0f}s"


def _read(mails: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**mail, "mime": base64.b64decode(mail["mime"])} for mail in mails]


def _command(sizes: Sizes, folder: Path, properties: Mapping[str, object]) -> tuple[str, ...]:
    """The command of a node with these properties of James' files; its log level is in `folder`.

    Raises CannotStart if the jars cannot be fetched or compiled against.
    """
    jars = f"{part('james', sizes)}/*"
    logback = write_file("logback.xml", folder / "logback.xml", level="WARN")
    log = f"-Dlogback.configurationFile={logback}"
    classes = f"{_compiled(sizes, jars)}:{jars}"
    return (str(java()), "-Xmx600m", log, "-cp", classes, "JamesNode", json.dumps(dict(properties)))


def _compiled(sizes: Sizes, jars: str) -> Path:
    """The folder with the classes of `files/james`."""
    sources = [FILES / "james" / name for name in _SOURCES]
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    digest = hashlib.sha256((jars + text).encode()).hexdigest()[:12]
    folder = sizes.cache / "java" / f"james-node-{digest}"
    if folder.is_dir():
        return folder
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
    compiler = "org.eclipse.jdt.internal.compiler.batch.Main"
    command = [str(java()), "-cp", jars, compiler, "-17", "-nowarn", "-proc:none"]
    done = subprocess.run(
        [*command, "-cp", _expanded(jars), "-d", str(scratch), *map(str, sources)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotStart(f"files/james does not compile: {done.stdout}{done.stderr}")
    try:
        scratch.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(scratch)
    return folder


def _expanded(jars: str) -> str:
    """The jars of a folder by name: the compiler does not expand `*`."""
    return ":".join(map(str, Path(jars).parent.glob("*.jar")))
