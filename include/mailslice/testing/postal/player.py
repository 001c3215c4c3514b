"""Plays Postal's workers: threads issue the statements of 3.3.6, or lock rows by id as 2.3 does.

A hook of the test runs between two statements. It may let the worker pause, hang or die there. The
player records the sent mails, the durations of its statements, and each lock error.
"""

from __future__ import annotations

import threading
import time

import pymysql

from mailslice.testing.postal.databases import FreshPostal, SqlSession
from mailslice.testing.postal.records import Died, Hook, Outcome, PlayerRecords
from mailslice.testing.postal.worker import Worker, WorkerSetup


class Player:
    """The threads of one worker host. They run while `with player:` is open."""

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
        """Acts as TERM: threads finish their mails, then end. Does not wait for hanging threads."""
        self._ending.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def wait_until_idle(self, seconds: float = 30) -> None:
        """Waits until no due row is unlocked. Raises AssertionError after `seconds`."""
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
                    # Postal's thread logs the error and goes on. The locks stay.
                    self.records.note_error(repr(error))
                    busy = False
                    worker.reconnect()
                if not busy:
                    self._ending.wait(self._idle)
        except Died:
            self.records.note_death()
        finally:
            worker.close()
