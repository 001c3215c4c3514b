"""The S3 server (s3proxy over a folder) as one local process."""

from __future__ import annotations

from importlib import resources

from mailslice.local.health import answers_http
from mailslice.local.java import java, java_home
from mailslice.local.parts import part
from mailslice.local.program import Program
from mailslice.local.settings import StackSettings

ACCESS_KEY = "mailslice"
SECRET_KEY = "mailslice-secret"  # noqa: S105 - of a server on loopback, made for this clone alone


def s3(stack: StackSettings) -> Program:
    """Writes the folder of the S3 server and gives its program."""
    folder = stack.state / "s3"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    properties = {
        "s3proxy.endpoint": f"http://127.0.0.1:{stack.ports.s3_port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": ACCESS_KEY,
        "s3proxy.credential": SECRET_KEY,
        # it holds each object whole while it is written: more threads than these only fill the heap
        "s3proxy.jetty.max-threads": "32",
        # larger ones, whose digest it must know before it writes them, are refused; by default 128 MiB, which is less than the largest mail
        "s3proxy.v4-max-non-chunked-request-size": str(256 * 1024 * 1024),
        "jclouds.provider": "filesystem-nio2",
        "jclouds.identity": "local",
        "jclouds.credential": "local",
        "jclouds.filesystem.basedir": str(folder / "data"),
    }
    (folder / "s3proxy.conf").write_text(
        "".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8"
    )
    # its own default is DEBUG, which costs two thirds of its speed
    logback = (
        (resources.files("mailslice.local") / "files" / "logback.xml")
        .read_text(encoding="utf-8")
        .replace("LEVEL", "WARN")
    )
    (folder / "logback.xml").write_text(logback, encoding="utf-8")
    options = (
        "-Xms128m",
        f"-Xmx{stack.sizes.s3_heap}",
        "-XX:+UseSerialGC",
        f"-Dlogback.configurationFile={folder / 'logback.xml'}",
        "-XX:+ExitOnOutOfMemoryError",
    )
    command = (
        str(java()),
        *options,
        "-cp",
        f"{part('s3proxy', stack.sizes)}/*",
        "org.gaul.s3proxy.Main",
        "--properties",
        str(folder / "s3proxy.conf"),
    )
    return Program(
        name="s3",
        command=command,
        environment={"JAVA_HOME": str(java_home())},
        healthy=lambda: answers_http(
            f"http://127.0.0.1:{stack.ports.s3_port}/", allowed=(200, 403)
        ),
        ports=("s3_port",),
        stop_seconds=10,
    )
