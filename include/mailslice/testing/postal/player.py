"""A player of Postal's workers: threads that issue the statements of 3.3.6, or 2.3's lock by id.

What a worker does between two statements is a hook of the test: it may pause, hang or die there.
The player records what was sent, how long its statements took, and each lock error it got.
"""

from __future__ import annotations

import threading
import time

import pymysql

from mailslice.testing.postal.databases import FreshPostal, SqlSession
from mailslice.testing.postal.records import Died, Hook, Outcome, PlayerRecords
from mailslice.testing.postal.worker import Worker, WorkerSetup


class Player:
    """Threads of one worker host. `with player:` runs them until its end."""

    def __init__(
        self,
        postal: FreshPostal,
        *,
        threads: int = 2,
        hook: Hook = lambda _step, _row: None,
        outcome: Outcome = lambda _row: "Sent",
        idle: float = 0.1,
        batches: bool = True,
        host: str = "worker-1",
        ip_addresses: tuple[int, ...] = (),
    ) -> None:
        self.records = PlayerRecords()
        self._setup = WorkerSetup(postal, hook, outcome, batches, ip_addresses, self.records)
        self._idle = idle
        self._name = f"host:{host} pid:{id(self) % 30_000 + 2}"
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(1, threads + 1)
        ]

    def __enter__(self) -> Player:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, seconds: float = 30) -> None:
        """TERM: threads finish what they have, then end. Threads that hang are left alone."""
        self._ending.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def wait_until_idle(self, seconds: float = 30) -> None:
        """Returns once no row that is due waits unlocked. Raises AssertionError after `seconds`."""
        postal = self._setup.postal
        session = SqlSession(postal.login.connect(postal.name))
        waiting = (
            "SELECT COUNT(*) FROM queued_messages WHERE locked_at IS NULL "
            "AND (retry_after IS NULL OR retry_after < UTC_TIMESTAMP())"
        )
        deadline = time.monotonic() + seconds
        while session.one(waiting):
            if time.monotonic() > deadline:
                raise AssertionError(f"mails still wait: {self.records.errors[-3:]}")
            time.sleep(0.05)
        session.close()

    def _run(self, number: int) -> None:
        worker = Worker(self._setup, f"{self._name} thread:{number}")
        try:
            while not self._ending.is_set():
                try:
                    busy = worker.poll()
                except (pymysql.Error, LookupError, OSError) as error:
                    # Postal's thread logs it and goes on. The locks stay.
                    self.records.note_error(repr(error))
                    busy = False
                    worker.reconnect()
                if not busy:
                    self._ending.wait(self._idle)
        except Died:
            self.records.note_death()
        finally:
            worker.close()
