"""`bench s3`: measures the hot path on several S3 servers: cold, warm, far, over TLS."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import urllib3

from mailslice.bench.distance import at_distance
from mailslice.bench.isolated import isolated
from mailslice.bench.measure import Work, measure_hotpath
from mailslice.bench.queues import bench_queue
from mailslice.bench.warm_up import own_mails, warm_stores
from mailslice.model.errors import BadInput, StoreUnavailable

if TYPE_CHECKING:
    from mailslice.model.mail import QueueName
    from mailslice.model.settings import Settings

_START_SECONDS = 60.0
_FIGURES = (
    "enqueue_rate",
    "enqueue_ms",
    "dequeue_rate",
    "dequeue_ms",
    "enqueue_cpu_seconds_per_1000",
    "dequeue_cpu_seconds_per_1000",
    "stores_cpu_seconds_per_1000",
    "window_limit",
)


@dataclass(frozen=True, slots=True)
class Server:
    """An S3 server as a JSON file describes it. `secure`: its TLS endpoint. `ca`: file of its CA.

    A server without a command runs already, so it has no cold case.
    """

    name: str
    endpoint: str
    command: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    secure: str = ""
    ca: str = ""

    @classmethod
    def of_file(cls, file: Path) -> Server:
        """Reads the JSON file. Raises BadInput if the file does not describe a server."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise BadInput(f"--server {file}: {error}") from error

    @contextmanager
    def running(self) -> Iterator[None]:
        """Starts the server, if it has a command, and ends it after the block."""
        if not self.command:
            yield
            return
        environment = {**os.environ, **(self.environment or {})}
        nothing = subprocess.DEVNULL
        with subprocess.Popen(
            self.command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing
        ) as process:
            try:
                self._wait(process)
                yield
            finally:
                process.terminate()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            with suppress(urllib3.exceptions.HTTPError):
                urllib3.request("GET", self.endpoint, timeout=1, retries=False)
                return  # any answer proves it is up: an unsigned request is refused
            time.sleep(0.05)
        raise StoreUnavailable(f"S3 server {self.name} does not answer at {self.endpoint}")

    def settings(self, settings: Settings, *, tls: bool = False) -> Settings:
        """The settings changed to use this server."""
        s3 = {"endpoint": self.secure, "ca": Path(self.ca)} if tls else {"endpoint": self.endpoint}
        return settings.model_copy(update={"s3": settings.s3.model_copy(update=s3)})


@dataclass(frozen=True, slots=True)
class ServerCase:
    """How a server is used: cold or warm; near, far or over TLS; with this many mails in flight."""

    state: str
    way: str
    in_flight: int


def cases(server: Server, smallest: int, many: int) -> list[ServerCase]:
    """The cases of a server in the order of measuring: cold first, then warm ones."""
    cold = [ServerCase("cold", "near", smallest)] if server.command else []
    tls = [ServerCase("warm", "TLS", many)] if server.secure else []
    near = [ServerCase("warm", "near", in_flight) for in_flight in (smallest, many)]
    return [*cold, *near, ServerCase("warm", "far", many), *tls]


def measure_servers(
    settings: Settings,
    *,
    queue: QueueName,
    servers: Sequence[Path],
    mails: int,
    size: int,
    in_flight: Sequence[int],
    rtt: timedelta,
    warm_up: timedelta,
    print_progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """One row for each server and case. `ratio`: to the warm, near case of the first server.

    In the cold case only the S3 server has just started; the other stores are warm.
    """
    kinds = [Server.of_file(file) for file in servers]
    kinds = kinds or [Server("of the settings", settings.s3.endpoint)]
    own = Work(settings, queue, mails, size, in_flight[-1])
    if warm_up:
        with bench_queue(settings, queue, synthetic=False, print_progress=print_progress):
            print_progress("warm-up of the stores")
            isolated(warm_stores, own, warm_up)
    rows: list[dict[str, Any]] = []
    for server in kinds:
        with server.running(), bench_queue(server.settings(settings), queue, synthetic=False):
            is_warm = False
            for case in cases(server, in_flight[0], in_flight[-1]):
                near = server.settings(settings, tls=case.way == "TLS")
                distance = rtt if case.way == "far" else timedelta(0)
                print_progress(
                    f"{server.name} S3 server: {case.state}, {case.way}, {case.in_flight}"
                )
                with at_distance(near, distance) as used:
                    work = replace(own, settings=used, in_flight=case.in_flight, nearby=near)
                    if case.state == "warm":
                        work = replace(work, warm=own_mails(size, case.in_flight))
                        if warm_up and not is_warm:
                            isolated(warm_stores, work, warm_up)
                            is_warm = True
                    figures = isolated(measure_hotpath, work)
                row = {"server": server.name, **asdict(case), "size": size, "count": mails}
                rows.append(row | {name: figures[name] for name in _FIGURES})
    return ratios(rows)


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with its `ratio` to the case with as many mails in flight."""
    return [{**row, "ratio": _ratio(row, _base(rows, row["in_flight"]))} for row in rows]


def _base(rows: Sequence[Mapping[str, Any]], in_flight: int) -> Mapping[str, Any]:
    usual = ("warm", "near", in_flight)
    return next(row for row in rows if (row["state"], row["way"], row["in_flight"]) == usual)


def _ratio(row: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, float]:
    rates = {name: row[name] / base[name] for name in ("enqueue_rate", "dequeue_rate")}
    p99 = {
        f"{name}_p99": row[name]["p99"] / base[name]["p99"] for name in ("enqueue_ms", "dequeue_ms")
    }
    return {name: round(value, 2) for name, value in (rates | p99).items()}
