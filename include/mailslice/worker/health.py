"""/livez, /readyz and /metrics, served by threads: they answer even when an event loop hangs.

/livez reports on the processes: a restart repairs what it reports. /readyz reports on the stores,
which no restart repairs: no liveness probe may use it.
"""

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from mailslice.model.errors import BadSetting
from mailslice.model.host_port import host_port

SILENT_AFTER = 15.0
"""Seconds without a report, or a turn of the event loop, after which a process hangs."""
MISSED_AFTER = 120.0
"""Seconds after which a dead process counts as missing: it restarts within half a minute."""

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """A process's report, sent every second: `connected` to the broker, `loop_lag` in seconds."""

    connected: bool
    loop_lag: float
    in_flight: int
    reaches_cassandra: bool = True
    holds_known: bool = True
    """Whether it read the queue's holds once: before that, it does not connect to RabbitMQ."""

    @property
    def down(self) -> list[str]:
        """Names of the stores that it does not reach."""
        if not self.holds_known:
            return ["Cassandra (its holds could not be read)"]
        reached = {"RabbitMQ": self.connected, "Cassandra": self.reaches_cassandra}
        return [store for store, is_reached in reached.items() if not is_reached]


@dataclass(slots=True)
class _Process:
    pid: int | None = None
    started: float = 0.0
    heard: float = 0.0
    health: ProcessHealth | None = None


class Liveness:
    """Evaluates the reports of the processes. Written by one thread, read by others."""

    def __init__(self, processes: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        now = clock()
        self._processes = [_Process(started=now, heard=now) for _ in range(processes)]

    def started(self, number: int, pid: int | None) -> None:
        process = self._processes[number]
        process.pid, process.started, process.health = pid, self._clock(), None

    def beat(self, number: int, health: ProcessHealth | None) -> None:
        """The process lives. `health` None: it is not ready yet, or not any more."""
        process = self._processes[number]
        process.heard, process.health = self._clock(), health

    def died(self, number: int) -> None:
        self._processes[number].pid = None
        self._processes[number].health = None

    def livez(self) -> Answer:
        """200 when every process is there and its event loop runs."""
        return self._answer_of("live", self._hangs)

    def readyz(self) -> Answer:
        """200 when every process reaches RabbitMQ and Cassandra."""
        return self._answer_of("ready", self._unready)

    def _answer_of(self, key: str, problem_of: Callable[[_Process], str | None]) -> Answer:
        entries = [
            {
                "process": number,
                "pid": process.pid,
                "connected": bool(process.health and process.health.connected),
                "inFlight": process.health.in_flight if process.health else 0,
                "wrong": problem_of(process),
            }
            for number, process in enumerate(self._processes)
        ]
        good = all(entry["wrong"] is None for entry in entries)
        body = json.dumps({key: good, "processes": entries}).encode() + b"\n"
        return 200 if good else 503, "application/json", body

    def _hangs(self, process: _Process) -> str | None:
        now = self._clock()
        if process.pid is None:
            seconds = now - process.heard
            return f"not running for {seconds:.0f} s" if seconds > MISSED_AFTER else None
        silent = now - max(process.heard, process.started)
        stuck = max(silent, process.health.loop_lag if process.health else 0.0)
        if stuck > SILENT_AFTER:
            return f"hangs: no turn of its event loop for {stuck:.0f} s"
        return None

    def _unready(self, process: _Process) -> str | None:
        if wrong := self._hangs(process):
            return wrong
        if process.health is None:
            return "not running yet"
        return f"does not reach {', '.join(process.health.down)}" if process.health.down else None


class HealthServer:
    """Serves `answers` (path -> its answer) until stopped, in daemon threads."""

    def __init__(self, host: str, port: int, answers: Mapping[str, Callable[[], Answer]]) -> None:
        def handler(*args: object) -> _Handler:
            return _Handler(answers, *args)

        family = {"address_family": socket.AF_INET6 if ":" in host else socket.AF_INET}
        listener = type("Listener", (ThreadingHTTPServer,), family)  # on `::` also for IPv4
        try:
            self._server: ThreadingHTTPServer = listener((host, port), handler)
        except (OSError, TypeError) as error:  # TypeError: not a host name
            raise BadSetting(
                f"health port {host_port(host, port)} cannot be opened: "
                f"{getattr(error, 'strerror', None) or error}; choose another with --health-port "
                "(0 = none), of the exporter with --port"
            ) from error
        self._thread = Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on. For port 0 the system chooses one."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = 10

    def __init__(self, answers: Mapping[str, Callable[[], Answer]], *args: object) -> None:
        self._answers = answers
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        answer = self._answers.get(self.path.partition("?")[0])
        if answer is None:
            self._answer(404, "text/plain", f"here are {', '.join(self._answers)}\n".encode())
        else:
            self._answer(*answer())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is fixed
        """Probes come every few seconds: they are not logged."""


def summed_metrics(figures: str) -> Answer:
    import prometheus_client as prometheus
    from prometheus_client import multiprocess

    registry = prometheus.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, figures)  # type: ignore[no-untyped-call]
    return 200, prometheus.CONTENT_TYPE_LATEST, prometheus.generate_latest(registry)
