"""The S3 server (s3proxy over a folder) as one local process."""

from __future__ import annotations

from mailslice.local.parts import java, java_home, part
from mailslice.local.program import Program, answers_http, write_file
from mailslice.local.settings import StackSettings

ACCESS_KEY = "mailslice"
SECRET_KEY = "mailslice-secret"  # noqa: S105 - of a server on loopback, made for this clone alone


def s3(stack: StackSettings) -> Program:
    """Writes the folder of the S3 server and gives its program."""
    folder = stack.state / "s3"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    properties = write_file(
        "s3proxy.conf",
        folder / "s3proxy.conf",
        port=stack.ports.s3_port,
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        folder=folder,
    )
    # its own default is DEBUG, which costs two thirds of its speed
    logback = write_file("logback.xml", folder / "logback.xml", level="WARN")
    options = (
        "-Xms128m",
        f"-Xmx{stack.sizes.s3_heap}",
        "-XX:+UseSerialGC",
        f"-Dlogback.configurationFile={logback}",
        "-XX:+ExitOnOutOfMemoryError",
    )
    jars = f"{part('s3proxy', stack.sizes)}/*"
    main = ("org.gaul.s3proxy.Main", "--properties", str(properties))
    url = f"http://127.0.0.1:{stack.ports.s3_port}/"
    return Program(
        name="s3",
        command=(str(java()), *options, "-cp", jars, *main),
        environment={"JAVA_HOME": str(java_home())},
        healthy=lambda: answers_http(url, allowed=(200, 403)),
        ports=("s3_port",),
        stop_seconds=10,
    )
