"""The S3 server as one local process: s3proxy over a folder, or moto in memory."""

from __future__ import annotations

from stack.moto import moto_command
from stack.parts import java, java_home, part
from stack.program import Program, answers_http, write_file
from stack.settings import S3Server, StackSettings

ACCESS_KEY = "mailslice"
SECRET_KEY = "mailslice-secret"  # noqa: S105 - of a server on loopback, made for this clone alone


TUNED_THREADS, DEFAULT_THREADS = 32, 200


def s3(stack: StackSettings) -> Program:
    """Writes the folder of the S3 server and gives its program."""
    port = stack.ports.s3_port
    if stack.sizes.s3_server is S3Server.MOTO:
        command, environment = moto_command(stack.sizes.cache, port), {}
    else:
        command = s3_command(stack, "s3", port, TUNED_THREADS, *tuned_options(stack))
        environment = {"JAVA_HOME": str(java_home())}
    return Program(
        name="s3",
        command=command,
        environment=environment,
        healthy=lambda: answers_http(f"http://127.0.0.1:{port}/", allowed=(200, 403)),
        ports=("s3_port",),
        stop_seconds=10,
    )


def tuned_options(stack: StackSettings) -> tuple[str, ...]:
    """JVM options of the tuned server."""
    return "-Xms128m", f"-Xmx{stack.sizes.s3_heap}", "-XX:+UseSerialGC"


def s3_command(
    stack: StackSettings, name: str, port: int, threads: int, *options: str
) -> tuple[str, ...]:
    """Writes the folder of a server of this name; the command that runs it."""
    folder = stack.state / name
    (folder / "data").mkdir(parents=True, exist_ok=True)
    properties = write_file(
        "s3proxy.conf",
        folder / "s3proxy.conf",
        port=port,
        threads=threads,
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        folder=folder,
    )
    # its own default is DEBUG, which costs two thirds of its speed
    logback = write_file("logback.xml", folder / "logback.xml", level="WARN")
    jars = f"{part('s3proxy', stack.sizes)}/*"
    main = ("org.gaul.s3proxy.Main", "--properties", str(properties))
    log = f"-Dlogback.configurationFile={logback}"
    return (str(java()), *options, log, "-XX:+ExitOnOutOfMemoryError", "-cp", jars, *main)
