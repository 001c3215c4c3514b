"""`make bench`: the benchmarks of the command line, against the test services, nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from mailslice.bench.page import machine
from mailslice.bench.servers import Server
from mailslice.model.settings import clone_root, load_settings
from stack.command_line import CommandLine
from stack.mariadb import mariadb_setting
from stack.pages import write as write_pages
from stack.parts import java_home
from stack.s3 import DEFAULT_THREADS, TUNED_THREADS, s3_command, tuned_options
from stack.services import store_settings
from stack.settings import Profile, StackSettings, stack_settings
from stack.stack import own_stores, remove
from stack.supervise import OWNER

PERFORMANCE_PAGE = clone_root() / "docs" / "performance.md"
_POSTAL, _COCKPIT, _JAMES = "postal", "cockpit", "james"
_PORTS_AFTER = 2000
"""From the stack's S3 port to the ports of the servers that a benchmark starts."""
_STORE_PASSWORD = "mailslice"  # noqa: S105 - of a key that lives as long as a benchmark


def bench(arguments: list[str]) -> int:
    """Runs `mailslice bench` with these words; without any, all of it, with docs/performance.md.

    The words `postal`, `james` and `cockpit` measure those alone; `cockpit` may be followed by how
    many queues, rows and waiting mails there are. Without words James and Postal come last; the
    cockpit is left out: its million rows take minutes to write.

    `all` and `s3` measure two kinds of S3 server. `--write` also computes docs/scale.md anew. Gives
    the exit code; a benchmark that failed writes no page.
    """
    stack = stack_settings(Profile.TEST)
    words = arguments or ["all", "--write", str(PERFORMANCE_PAGE)]
    settings = {
        **store_settings(stack),
        **mariadb_setting(stack),
        "MAILSLICE_ARTIFACTS": str(stack.state / "artifacts"),
        "MAILSLICE_QUEUE_SHARED": "false",
    }
    with own_stores(stack, lambda: settings, remove) as steps:
        steps.console.print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}")
        if words == [_POSTAL]:
            return _postal(stack, steps.console.print)
        servers = s3_servers(stack) if words[0] in {"all", "s3", _JAMES} else []
        if words == [_JAMES]:
            return _james(stack, settings, servers[-1], steps.console.print)
        if words[0] == _COCKPIT:
            return _cockpit(settings, steps.console.print, [int(word) for word in words[1:]])
        options = (word for file in servers for word in ("--server", str(file)))
        code = CommandLine(settings).show("bench", *words, *options)
        if code == 0 and "--write" in words:
            write_pages(stack.root)
        if not arguments:
            code = _james(stack, settings, servers[-1], steps.console.print) or code
            code = _postal(stack, steps.console.print) or code
    return code


def _james(
    stack: StackSettings, settings: Mapping[str, str], untuned: Path, show: Callable[[str], None]
) -> int:
    from stack.james_bench import bench_james

    return bench_james(settings, Server.of_file(untuned), stack.state, show)


def _postal(stack: StackSettings, show: Callable[[str], None]) -> int:
    from stack.postal_bench import bench_postal

    return bench_postal(stack.ports.mariadb_port, stack.state / "artifacts", show)


def _cockpit(settings: Mapping[str, str], show: Callable[[str], None], sizes: Sequence[int]) -> int:
    from stack.cockpit_bench import Size, bench_cockpit

    loaded = load_settings(settings, state_file=Path("/nonexistent"))
    return bench_cockpit(loaded, show, Size(*sizes))


def s3_servers(stack: StackSettings) -> list[Path]:
    """Files with which a benchmark starts a tuned and an untuned S3 server, each also with TLS.

    Untuned: 512 MiB and s3proxy's default of 200 threads, the rest is Java's own choice. Both log
    warnings alone.
    """
    port = stack.ports.s3_port + _PORTS_AFTER
    tuned = s3_command(stack, "s3-tuned", port, TUNED_THREADS, *tuned_options(stack))
    untuned = s3_command(stack, "s3-untuned", port + 2, DEFAULT_THREADS, "-Xmx512m")
    return [
        _server(stack, "tuned", port, tuned),
        _server(stack, "untuned", port + 2, untuned),
    ]


def _server(stack: StackSettings, name: str, port: int, command: tuple[str, ...]) -> Path:
    folder = stack.state / f"s3-{name}"
    secure = f"https://127.0.0.1:{port + 1}"
    keys, certificate = _certificate(folder)
    with (folder / "s3proxy.conf").open("a", encoding="utf-8") as properties:
        properties.write(
            f"s3proxy.secure-endpoint={secure}\ns3proxy.keystore-path={keys}\n"
            f"s3proxy.keystore-password={_STORE_PASSWORD}\n"
        )
    server = {
        "name": name,
        "command": command,
        "environment": {"JAVA_HOME": str(java_home()), OWNER: str(stack.state)},
        "endpoint": f"http://127.0.0.1:{port}",
        "secure": secure,
        "ca": str(certificate),
    }
    file = folder / "server.json"
    file.write_text(json.dumps(server), encoding="utf-8")
    return file


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A key of 127.0.0.1 as s3proxy reads it, and its certificate as clients do."""
    keys, certificate = folder / "keys.p12", folder / "certificate.pem"
    keytool = str(java_home() / "bin" / "keytool")
    store = ("-keystore", str(keys), "-storepass", _STORE_PASSWORD, "-alias", "s3")
    name = ("-dname", "CN=127.0.0.1", "-ext", "SAN=IP:127.0.0.1", "-validity", "30")
    make = (keytool, "-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", *name, *store)
    export = (keytool, "-exportcert", "-rfc", "-file", str(certificate), *store)
    for command in (make, export):
        subprocess.run(command, check=True, capture_output=True)
    return keys, certificate
