"""/livez and /metrics of the consumer, served by the parent: it answers even when a process hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from mailslice.model.errors import BadSetting

SILENT_AFTER = 15.0
"""A process that says nothing, or whose event loop does not turn, for so many seconds hangs."""
DISCONNECTED_AFTER = 120.0
"""Reconnecting is life; for longer than this it is not."""


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """What a process said last."""

    connected: bool
    loop_lag: float
    in_flight: int


@dataclass(slots=True)
class _Seen:
    pid: int | None = None
    heard: float = 0.0
    connected: float = 0.0
    health: ProcessHealth | None = None


class Liveness:
    """Judges the processes by what they said and when. Called from the supervisor's thread, read from the server's."""

    def __init__(self, processes: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        now = clock()
        self._seen = [_Seen(heard=now, connected=now) for _ in range(processes)]
        self.dead_pids: list[int] = []

    def started(self, number: int, pid: int | None) -> None:
        """A process was started; it has yet to connect."""
        seen = self._seen[number]
        seen.pid, seen.heard, seen.health = pid, self._clock(), None

    def beat(self, number: int, health: ProcessHealth) -> None:
        """A process spoke."""
        seen = self._seen[number]
        seen.heard, seen.health = self._clock(), health
        if health.connected:
            seen.connected = seen.heard

    def died(self, number: int, pid: int | None) -> None:
        """A process ended; `dead_pids` keeps it for the gauges."""
        self._seen[number].pid = None
        self._seen[number].health = None
        if pid is not None:
            self.dead_pids.append(pid)

    def verdict(self) -> tuple[bool, list[dict[str, object]]]:
        """(alive, one entry a process with what is wrong with it)."""
        now = self._clock()
        entries = [self._entry(number, seen, now) for number, seen in enumerate(self._seen)]
        return all(entry["wrong"] is None for entry in entries), entries

    def _entry(self, number: int, seen: _Seen, now: float) -> dict[str, object]:
        health = seen.health
        wrong = None
        if seen.pid is not None and (
            now - seen.heard > SILENT_AFTER or (health and health.loop_lag > SILENT_AFTER)
        ):
            wrong = f"hangs: no turn of its event loop for {max(now - seen.heard, health.loop_lag if health else 0):.0f} s"
        elif now - seen.connected > DISCONNECTED_AFTER:
            wrong = f"not connected for {now - seen.connected:.0f} s"
        return {
            "process": number,
            "pid": seen.pid,
            "connected": bool(health and health.connected),
            "inFlight": health.in_flight if health else 0,
            "wrong": wrong,
        }


class HealthServer:
    """Serves until stopped, in daemon threads."""

    def __init__(self, host: str, port: int, liveness: Liveness, figures: str) -> None:
        def handler(*args: object) -> _Handler:
            return _Handler(liveness, figures, *args)

        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            raise BadSetting(
                f"health port {host}:{port} cannot be opened: {error.strerror or error}; choose another with --health-port (0 = none)"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )

    def start(self) -> None:
        """Answers from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Closes the port."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = 10

    def __init__(self, liveness: Liveness, figures: str, *args: object) -> None:
        self._liveness = liveness
        self._figures = figures
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/livez":
            alive, entries = self._liveness.verdict()
            self._answer(
                200 if alive else 503,
                "application/json",
                json.dumps({"live": alive, "processes": entries}).encode() + b"\n",
            )
        elif path == "/metrics":
            kind, body = summed_metrics(self._figures, self._liveness)
            self._answer(200, kind, body)
        else:
            self._answer(404, "text/plain", b"/livez and /metrics are here\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Probes come every few seconds: they are not logged."""


def summed_metrics(figures: str, liveness: Liveness) -> tuple[str, bytes]:
    """(content type, text): the figures of all processes, summed; gauges of ended ones are left out."""
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        generate_latest,
        multiprocess,
    )

    while liveness.dead_pids:
        multiprocess.mark_process_dead(liveness.dead_pids.pop(), figures)  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, figures)  # type: ignore[no-untyped-call]
    return CONTENT_TYPE_LATEST, generate_latest(registry)
