"""`make bench ARGS=james`: mailslice beside a real James, in turn, on one untuned S3 server.

Only the stack can start James' queue, so this is beside `mailslice bench`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from mailslice.bench.isolated import isolated
from mailslice.bench.measure import HEADER_BYTES, Work, measure_hotpath
from mailslice.bench.queues import bench_queue
from mailslice.bench.servers import Server
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings, load_settings
from stack.james import james_node

MAILS, SIZE, IN_FLIGHT, ROUNDS = 2_000, 4_096, 16, 4
GOALS, LEAST = (2.5, 3.0), (1.6, 2.2)
"""Enqueues and dequeues in times of James', on a server that has just started. The least is what
the first comparison had: runs differ by a third on a shared machine.
"""
_QUEUE = QueueName("mailslice-bench-james")
_STATES = ("cold", "warm")
"""Cold: the S3 server and the client have just started. Warm: after the mails of the cold case."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Mails a second, and CPU ms a mail of the process that enqueues and dequeues."""

    enqueue_rate: float
    dequeue_rate: float
    enqueue_cpu: float
    dequeue_cpu: float

    @property
    def line(self) -> str:
        """For people."""
        return (
            f"{self.enqueue_rate:,.0f} enqueues and {self.dequeue_rate:,.0f} dequeues a second, "
            f"{self.enqueue_cpu:.2f} and {self.dequeue_cpu:.2f} ms of CPU a mail"
        )


def bench_james(
    env: Mapping[str, str], server: Server, folder: Path, show: Callable[[str], None]
) -> int:
    """Measures both in turn; 1 where a ratio is below the least."""
    settings = load_settings(env, state_file=Path("/nonexistent"))
    speeds: dict[tuple[str, str], list[Speed]] = {}
    for number in range(ROUNDS):
        sides = ("mailslice", "James") if number % 2 == 0 else ("James", "mailslice")
        for side in sides:
            with server.running():
                used = server.settings(settings)
                with bench_queue(used, _QUEUE, synthetic=False):
                    measured = _mailslice(used) if side == "mailslice" else _james(used, folder)
            for state, speed in zip(_STATES, measured, strict=True):
                speeds.setdefault((side, state), []).append(speed)
                show(f"{side}, {state}: {speed.line}")
    for state in _STATES:
        enqueue, dequeue = _ratios(speeds, state)
        show(f"{state}: {enqueue:.2f} x James' enqueues, {dequeue:.2f} x its dequeues")
    ratios = _ratios(speeds, "cold")
    if not _reaches(ratios, GOALS):
        show(f"james: missed on a server just started: {GOALS[0]} x and {GOALS[1]} x")
    return int(not _reaches(ratios, LEAST))


def _reaches(ratios: tuple[float, float], limits: tuple[float, float]) -> bool:
    return all(ratio >= limit for ratio, limit in zip(ratios, limits, strict=True))


def _ratios(speeds: Mapping[tuple[str, str], list[Speed]], state: str) -> tuple[float, float]:
    """The medians of mailslice's rates, enqueue and dequeue, divided by those of James'."""
    own, james = speeds["mailslice", state], speeds["James", state]
    return (
        statistics.median(speed.enqueue_rate for speed in own)
        / statistics.median(speed.enqueue_rate for speed in james),
        statistics.median(speed.dequeue_rate for speed in own)
        / statistics.median(speed.dequeue_rate for speed in james),
    )


def _mailslice(settings: Settings) -> list[Speed]:
    """The speeds of each state."""
    speeds = []
    for state in _STATES:
        warm = 1 if state == "cold" else MAILS
        figures = isolated(
            measure_hotpath, Work(settings, _QUEUE, MAILS, SIZE, IN_FLIGHT, warm=warm)
        )
        speeds.append(
            Speed(
                figures["enqueue_rate"],
                figures["dequeue_rate"],
                figures["enqueue_cpu_seconds_per_1000"],
                figures["dequeue_cpu_seconds_per_1000"],
            )
        )
    return speeds


def _james(settings: Settings, folder: Path) -> list[Speed]:
    """The speeds of each state."""
    header = b"Subject: " + b"x" * (HEADER_BYTES - 13) + b"\r\n\r\n"
    mail = {
        "name": "mailslice-bench-james",
        "sender": "alice@bench.example",
        "recipients": ["bob@bench.example"],
        "mime": header + b"x" * (SIZE - len(header)),
    }
    speeds = []
    with james_node(settings, folder / "james") as james:
        process = psutil.Process(james.pid)
        for _ in _STATES:
            begin = _cpu(process)
            enqueue = james.enqueue(mail, queue=_QUEUE, copies=MAILS, inFlight=IN_FLIGHT)
            middle = _cpu(process)
            taken = james.call(
                "dequeue",
                _QUEUE,
                count=MAILS,
                outcome="SUCCESS",
                mails=False,
                inFlight=IN_FLIGHT,
            )
            speeds.append(
                Speed(
                    MAILS / enqueue,
                    MAILS / taken["seconds"],
                    1000 * (middle - begin) / MAILS,
                    1000 * (_cpu(process) - middle) / MAILS,
                )
            )
    return speeds


def _cpu(process: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)
