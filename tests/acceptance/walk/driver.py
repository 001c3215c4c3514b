"""Drives a random walk: starts the processes, breaks the connections to the stores, kills, stops,
deletes, clears and flushes; then drains the queue and balances the books.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.queues import create
from mailslice.bench.clearing import marked_ids
from mailslice.model.delay_levels import DELAY_LEVELS
from mailslice.model.errors import ContentMissing, MailsliceError
from mailslice.model.mail import QueueName, ViewRow
from mailslice.model.names import RabbitNames
from mailslice.stores import Stores, open_stores
from mailslice.stores.rabbitmq.checkout import dead_letter_ids
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.worker import QueueWorker, open_worker
from tests.acceptance.walk.books import Books, Journal, State, balance, read
from tests.acceptance.walk.consumer import CALM
from tests.services.worker.cuttable import Cuttable

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
GRACE = "8s"
"""Longer than an insert may take: a row inserted after the cleanup of its slice is a known case."""
STORES = ("cassandra", "rabbitmq", "s3")


@dataclass(frozen=True)
class Plan:
    """The length of a walk, its processes of each kind, the tasks in each, and the kinds of events
    that may happen.

    A walk takes `seconds`, and up to `patience` more until the journals have the number of events
    of each kind in `needs`: so the necessary events happen even on a busy machine.
    """

    seconds: float
    producers: int
    consumers: int
    tasks: int
    clears: bool = True
    kills_cleaner: bool = True
    """A killed cleanup leaves its lock, and the next cleanup waits for up to a minute."""
    longest_fault: float = 2.5
    drain: float = 120.0
    needs: Mapping[str, int] = field(default_factory=dict)
    patience: float = 150.0


@dataclass
class Process:
    """One of the walk's processes. Each start has the name `who` with the number of the start
    appended.
    """

    kind: str
    who: str
    tasks: str
    starts: int = 0
    running: subprocess.Popen[bytes] | None = None
    logs: list[Path] = field(default_factory=list)
    peak_mib: float = 0.0


IMPATIENT = {
    "MAILSLICE_CASSANDRA_TIMEOUT": "2s",
    "MAILSLICE_RABBITMQ_TIMEOUT": "3s",
    "MAILSLICE_S3_TIMEOUT": "3s",
}
"""Time-outs of processes whose connections break. All other steps use the default time-outs."""


_LONGEST_DELAY = 60
"""Seconds: twice the cap of the back-off."""
BACK_OFF = {"MAILSLICE_WORKER_BACK_OFF_BASE": "2s", "MAILSLICE_WORKER_BACK_OFF_CAP": "30s"}
"""The message of a cleared mail waits in its delay level until it is due. With the default back-off
the fifth attempt is due after eight minutes, later than any drain."""


def variant(rng: random.Random) -> dict[str, str]:
    """Settings of this walk: seeds differ in the kind of queue."""
    quorum = rng.random() < 0.5
    return {
        "MAILSLICE_QUEUE_QUORUM": str(quorum).lower(),
        **({"MAILSLICE_QUEUE_QUORUM_GROUP_SIZE": "1"} if quorum else {}),
        "MAILSLICE_QUEUE_SHARED": rng.choice(["true", "false"]),
        "MAILSLICE_QUEUE_TABLE": rng.choice(["v4", "v4", "v3"]),
        "MAILSLICE_BLOB_STRATEGY": rng.choice(["passthrough", "passthrough", "deduplication"]),
        "MAILSLICE_QUEUE_SLICE_WINDOW": "2s",
    }


class Walk:
    """One walk over one queue. `fresh`: own keyspaces, vhost and buckets in real stores."""

    def __init__(self, fresh: Any, folder: Path, seed: int, plan: Plan) -> None:
        self.seed, self.plan, self.folder = seed, plan, folder
        self.rng = random.Random(seed)
        self.direct = fresh.but(**variant(self.rng))
        self.queue = QueueName("spool")
        self.journal = Journal(folder / "driver.jsonl", "driver")
        self.proxies: dict[str, Cuttable] = {}
        self._later: set[asyncio.Task[None]] = set()
        kinds = [("producer", plan.producers), ("consumer", plan.consumers)]
        self.processes = [
            Process(kind, f"{kind[0]}{number}", str(plan.tasks))
            for kind, many in kinds
            for number in range(many)
        ]
        self.cleaner = Process("cleaner", "x0", GRACE)

    async def run(self) -> Books:
        """Runs the walk and drains the queue; returns the books."""
        with open_stores(self.direct.settings) as stores:
            create(stores, self.queue)
            async with AsyncExitStack() as stack:
                for store, address in self._addresses().items():
                    self.proxies[store] = await stack.enter_async_context(Cuttable(*address))
                self.env = self._through().environ | {"PYTHONPATH": str(ROOT)}
                try:
                    await self._walk()
                    drained = await self._drain(stores)
                finally:
                    self._kill_all()
            state = await asyncio.to_thread(self._state, stores, drained=drained)
        return balance(read(self.folder), state)

    def _addresses(self) -> dict[str, tuple[str, int]]:
        env = self.direct.env
        rabbit, s3 = urlsplit(env["MAILSLICE_RABBITMQ_URL"]), urlsplit(env["MAILSLICE_S3_ENDPOINT"])
        return {
            "cassandra": (
                env["MAILSLICE_CASSANDRA_CONTACT_POINTS"].split(",")[0],
                int(env["MAILSLICE_CASSANDRA_PORT"]),
            ),
            "rabbitmq": (rabbit.hostname or "", rabbit.port or 0),
            "s3": (s3.hostname or "", s3.port or 0),
        }

    def _through(self) -> Any:
        rabbit = urlsplit(self.direct.env["MAILSLICE_RABBITMQ_URL"])
        ports = {store: proxy.port for store, proxy in self.proxies.items()}
        return self.direct.but(
            **IMPATIENT,
            **BACK_OFF,
            MAILSLICE_CASSANDRA_CONTACT_POINTS="127.0.0.1",
            MAILSLICE_CASSANDRA_PORT=str(ports["cassandra"]),
            MAILSLICE_RABBITMQ_URL=rabbit._replace(
                netloc=f"{rabbit.username}:{rabbit.password}@127.0.0.1:{ports['rabbitmq']}"
            ).geturl(),
            MAILSLICE_S3_ENDPOINT=f"http://127.0.0.1:{ports['s3']}",
        )

    async def _walk(self) -> None:
        for process in [*self.processes, self.cleaner]:
            self._start(process)
        await self._all_ready()
        end = time.monotonic() + self.plan.seconds
        with open_stores(self._through().settings) as stores:
            async with open_worker(self._through().settings, self.queue) as worker:
                administrator = MailQueue(stores, self.queue, lambda: datetime.now(UTC))
                doings = self._doings(administrator, worker)
                while time.monotonic() < end or (
                    time.monotonic() < end + self.plan.patience and self._missing()
                ):
                    await asyncio.sleep(self.rng.uniform(0.2, 1.2))
                    (do,) = self.rng.choices(list(doings), list(doings.values()))
                    await do()
                    self._start_again()
                await self._calm_down()

    def _missing(self) -> bool:
        happened = Counter(event["do"] for event in read(self.folder))
        return any(happened[word] < least for word, least in self.plan.needs.items())

    def _doings(
        self, administrator: MailQueue, worker: QueueWorker
    ) -> dict[Callable[[], Awaitable[None]], float]:
        return {
            self._fault: 10,
            self._kill: 3,
            self._stop: 2,
            lambda: self._erase(administrator, everything=False): 5,
            lambda: self._erase(administrator, everything=True): 0.4 if self.plan.clears else 0,
            lambda: self._flush(worker): 1,
        }

    async def _fault(self) -> None:
        """Starts a fault in a task of its own, as faults may overlap."""
        store, kind = self.rng.choice(STORES), self.rng.choice(["cut", "cut", "hang", "fray"])
        task = asyncio.create_task(
            self._one_fault(store, kind, self.rng.uniform(0.1, self.plan.longest_fault))
        )
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _one_fault(self, store: str, kind: str, seconds: float) -> None:
        proxy = self.proxies[store]
        self.journal.write("fault", what=f"{store} {kind}", seconds=round(seconds, 2))
        if kind == "fray":
            proxy.cut_after = self.rng.randrange(1, 6000)
        elif kind == "hang":
            proxy.hangs = True
            await asyncio.sleep(seconds)
            proxy.hangs = False
        else:
            await proxy.cut()
            await asyncio.sleep(seconds)
            await self._mend(proxy)
        self.journal.write("fault", what=f"{store} {kind} is over")

    @staticmethod
    async def _mend(proxy: Cuttable) -> None:
        with suppress(OSError):  # an overlapping fault has mended it
            await proxy.mend()

    async def _kill(self) -> None:
        process = self.rng.choice(
            [self.cleaner]
            if self.plan.kills_cleaner and self.rng.random() < 0.05
            else self.processes
        )
        if process.running is not None and process.running.poll() is None:
            self.journal.write("kill", what=process.who)
            self._weigh(process)
            process.running.kill()

    async def _stop(self) -> None:
        """Stops a process by SIGSTOP for a while, like a machine that swaps."""
        process = self.rng.choice(self.processes)
        if process.running is not None and process.running.poll() is None:
            self.journal.write("fault", what=f"{process.who} stands still")
            process.running.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self.rng.uniform(0.2, self.plan.longest_fault))
            process.running.send_signal(signal.SIGCONT)
            self.journal.write("fault", what=f"{process.who} goes on")

    async def _erase(self, administrator: MailQueue, *, everything: bool) -> None:
        sender, before, after = None, "clearing", "cleared"
        if not everything:
            seen = await asyncio.to_thread(self._some_sender, administrator)
            if seen is None:
                return
            sender, before, after = seen, "deleting", "deleted"
        began = time.monotonic()
        self.journal.write(before, **({"sender": sender} if sender else {}))
        more: dict[str, Any] = {"began": began, **({"sender": sender} if sender else {})}
        try:
            count = await asyncio.to_thread(
                administrator.clear
                if everything
                else lambda: administrator.delete(MailFilter(sender=sender))
            )
        except MailsliceError as error:
            self.journal.write(
                "clear-failed" if everything else "delete-failed", why=str(error), **more
            )
        else:
            self.journal.write(after, count=count, **more)

    def _some_sender(self, administrator: MailQueue) -> str | None:
        try:
            row: ViewRow | None = next(administrator.browse(limit=1), None)
        except MailsliceError:
            return None
        return row.item.mail.sender if row is not None else None

    async def _flush(self, worker: QueueWorker) -> None:
        try:
            self.journal.write("flushed", count=await worker.flush())
        except MailsliceError as error:
            self.journal.write("flush-failed", why=str(error))

    def _start(self, process: Process) -> None:
        process.starts += 1
        who = f"{process.who}-{process.starts}"
        log = self.folder / f"{who}.log"
        process.logs.append(log)
        arguments = [
            who,
            str(self.folder / f"{who}.jsonl"),
            f"{self.seed}-{who}",
            process.tasks,
            self.queue,
        ]
        with log.open("wb") as file:
            command = [sys.executable, str(HERE / f"{process.kind}.py"), *arguments]
            # A cleanup has five steps and would never end on breaking connections: it uses the
            # stores directly, and is killed instead.
            env = (
                self.env
                if process.kind != "cleaner"
                else self.direct.environ | {"PYTHONPATH": str(ROOT)}
            )
            process.running = subprocess.Popen(
                command, env=env, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT
            )
        self.journal.write("start", what=who)

    def _start_again(self) -> None:
        for process in [*self.processes, self.cleaner]:
            if process.running is not None and process.running.poll() is not None:
                self._start(process)

    async def _all_ready(self) -> None:
        async with asyncio.timeout(150):
            while True:
                ready = {event["who"] for event in read(self.folder) if event["do"] == "ready"}
                if all(
                    f"{process.who}-{process.starts}" in ready
                    for process in [*self.processes, self.cleaner]
                ):
                    return
                self._start_again()
                await asyncio.sleep(0.2)

    async def _calm_down(self) -> None:
        if self._later:
            await asyncio.wait(self._later)
        (self.folder / CALM).touch()
        for proxy in self.proxies.values():
            proxy.hangs, proxy.cut_after = False, None
            await self._mend(proxy)

    async def _drain(self, stores: Stores) -> bool:
        """Ends producers; lets consumers go on until nothing is left to deliver.

        Returns whether the queue became empty.
        """
        self._start_again()
        producers = [process for process in self.processes if process.kind == "producer"]
        for process in producers:
            self._weigh(process)
            _terminate(process)
        if self.cleaner.running is not None:
            # It may wait a minute for the lock of its own earlier run, which was killed.
            self.cleaner.running.kill()
        await asyncio.to_thread(_ended, producers)
        end, empty = time.monotonic() + self.plan.drain, 0
        while time.monotonic() < end and empty < 3:
            await asyncio.sleep(0.5)
            empty = empty + 1 if await asyncio.to_thread(self._nothing_waits, stores) else 0
            for process in self.processes:
                if (
                    process.kind == "consumer"
                    and process.running is not None
                    and process.running.poll() is not None
                ):
                    self._start(process)
        if empty < 3:
            await asyncio.to_thread(self._journal_remaining, stores)
        consumers = [process for process in self.processes if process.kind == "consumer"]
        for process in consumers:
            self._weigh(process)
            _terminate(process)
        await asyncio.to_thread(_ended, consumers)
        # Messages that consumers gave back at their end are ready soon. A live mail without a
        # message does not count here: the books report it.
        if empty < 3:
            await asyncio.sleep(5)
        return not await asyncio.to_thread(self._messages, stores)

    def _journal_remaining(self, stores: Stores) -> None:
        """Writes into the driver's journal where messages are, and the first of each queue."""
        columns = ("name", "messages_ready", "messages_unacknowledged", "messages_dlx", "consumers")
        queues = [one for one in stores.management.queues(columns) if one.get("messages_ready")]
        with blocking_connection(self.direct.settings.rabbitmq) as connection:
            for queue in queues:
                channel = connection.channel()  # closing it requeues the message
                method, properties, _ = channel.basic_get(queue["name"])
                said = None if method is None else [method.redelivered, str(properties.headers)]
                self.journal.write("left", queue=queue, first=said)
        for queue in stores.management.queues(columns):
            if queue.get("messages_unacknowledged"):
                self.journal.write("left", queue=queue)

    def _nothing_waits(self, stores: Stores) -> bool:
        """Whether no message but dead letters is ready, and no accepted mail is live. Mails that
        consumers hold are live.
        """
        if self._messages(stores):
            return False
        accepted = {event["id"] for event in read(self.folder) if event["do"] == "accepted"}
        left = accepted & self._live(stores).keys()
        return not left or left <= {
            str(found) for found in dead_letter_ids(self.direct.settings, self.queue)
        }

    def _messages(self, stores: Stores) -> int:
        """Ready messages of the delay levels, the hop queue and the work queue, counted in the
        order in which a message passes them, so that none is missed.

        Leaves out levels over a minute, which only leases of ten minutes use; a lease whose row
        was written slowly is in the level below. A worker drops the lease of a completed mail when
        it is due; a live mail is found in the view.
        """
        names = RabbitNames(self.queue)
        leases = {names.delay_queue(level) for level in DELAY_LEVELS if level > _LONGEST_DELAY}
        before = [
            *(one for one in stores.management.delay_queues(self.queue) if one not in leases),
            *(
                [names.hop_queue]
                if stores.management.arguments(names.hop_queue) is not None
                else []
            ),
        ]
        with blocking_connection(self.direct.settings.rabbitmq) as connection:
            channel = connection.channel()
            return sum(
                channel.queue_declare(name, passive=True).method.message_count
                for name in (*before, names.work_queue)
            )

    def _live(self, stores: Stores) -> dict[str, ViewRow]:
        marked = self._marked(stores)
        rows = [
            row
            for table in stores.tables.existing
            for _, page in table.rows_of(self.queue, table.partitions(self.queue))
            for row in page
        ]
        return {str(row.enqueue_id): row for row in rows if str(row.enqueue_id) not in marked}

    def _marked(self, stores: Stores) -> set[str]:
        return {str(found) for found in marked_ids(stores.tables.deleted, self.queue)}

    def _state(self, stores: Stores, *, drained: bool) -> State:
        live = self._live(stores)
        administrator = MailQueue(stores, self.queue, lambda: datetime.now(UTC))
        return State(
            live=frozenset(live),
            bare=frozenset(name for name, row in live.items() if _is_bare(administrator, row)),
            marked=frozenset(self._marked(stores)),
            dead_letters=tuple(
                str(found) for found in dead_letter_ids(self.direct.settings, self.queue)
            ),
            drained=drained,
            drops_marks=True,
        )

    def _weigh(self, process: Process) -> None:
        if process.running is not None:
            with suppress(OSError, StopIteration):
                status = Path(f"/proc/{process.running.pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
                process.peak_mib = max(process.peak_mib, peak / 1024)

    def _kill_all(self) -> None:
        for process in [*self.processes, self.cleaner]:
            if process.running is not None and process.running.poll() is None:
                process.running.kill()
                process.running.wait()

    def said(self) -> str:
        """Describes the walk, for the message of a failed test."""
        return (
            f"seed {self.seed} (MAILSLICE_TEST_WALK_SEED={self.seed}), "
            f"{json.dumps(variant(random.Random(self.seed)))}, journals and logs in "
            f"{self.folder}"
        )


def _terminate(process: Process) -> None:
    if process.running is not None and process.running.poll() is None:
        process.running.terminate()


def _ended(processes: list[Process]) -> None:
    for process in processes:
        if process.running is not None:
            process.running.wait(60)


def _is_bare(administrator: MailQueue, row: ViewRow) -> bool:
    try:
        administrator.content(row)
    except ContentMissing:
        return True
    return False
