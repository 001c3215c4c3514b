"""`make bench ARGS=postal`: the list of 20,000 rows, and zombies closed beside live workers.

The player of Postal's workers is a tool of the tests, so this is beside `mailslice bench`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mailslice.duties.stuck_mails_postal.survey import survey
from mailslice.model.settings import load_settings
from mailslice.stores.postal.databases import PostalDatabases
from mailslice.stores.postal.rows import PAGE
from mailslice.testing.postal.databases import FreshPostal, MariaDbLogin
from mailslice.testing.postal.mails import Ended, PostalMails
from mailslice.testing.postal.player import Player

QUEUED, ZOMBIES, WORKERS = 20_000, 500, 4
LONGEST_LIST, LEAST_A_MINUTE, LONGEST_WAIT = 2.0, 500, 0.5
"""Seconds, messages a minute by the whole run, seconds of one statement of a worker."""
_LISTS = 5
_LOGGED = {
    "log_output": "'TABLE'",
    "slow_query_log": "1",
    "long_query_time": "3600",
    "log_queries_not_using_indexes": "1",
    "log_slow_filter": "'not_using_index'",
    "min_examined_row_limit": str(PAGE),
}
"""Global settings of MariaDB by which it logs statements that look at more than a page of rows, and
by no index.
"""


@dataclass(frozen=True, slots=True)
class PostalSpeed:
    """`list_seconds`: the slowest of five. `closed_a_minute`: by apply; `run_seconds`: all steps.

    `longest_wait`: seconds of a live worker's slowest statement. `unindexed`: our statements that
    read more rows than a page without an index.
    """

    list_seconds: float
    closed: int
    run_seconds: float
    closed_a_minute: float
    longest_wait: float
    unindexed: tuple[str, ...]

    def missed(self) -> list[str]:
        """Which goals were not met."""
        unindexed = [text[:120] for text in self.unindexed[:3]]
        goals = {
            f"the list took {self.list_seconds:.2f} s, not under {LONGEST_LIST:g}": (
                self.list_seconds < LONGEST_LIST
            ),
            f"{self.closed} of {ZOMBIES} were closed": self.closed == ZOMBIES,
            f"{self.closed / self.run_seconds * 60:.0f} a minute, not {LEAST_A_MINUTE}": (
                self.closed / self.run_seconds * 60 >= LEAST_A_MINUTE
            ),
            f"a worker waited {self.longest_wait:.2f} s, not under {LONGEST_WAIT:g}": (
                self.longest_wait < LONGEST_WAIT
            ),
            f"statements without an index: {unindexed}": not unindexed,
        }
        return [text for text, is_met in goals.items() if not is_met]


def bench_postal(port: int, folder: Path, show: Callable[[str], None]) -> int:
    """Measures on the MariaDB of this port; 1 where a goal is missed. Removes what it made."""
    postal = FreshPostal(MariaDbLogin(port), f"bench{os.getpid()}")
    try:
        postal.install()
        for _ in range(2):
            postal.add_server()
        speed = _measured(postal, folder)
    finally:
        postal.drop()
    show(
        f"postal: list of {QUEUED:,} rows {speed.list_seconds:.2f} s; {speed.closed} zombies "
        f"closed in {speed.run_seconds:.1f} s, apply {speed.closed_a_minute:,.0f} a minute; "
        f"a worker's longest wait {speed.longest_wait * 1000:.0f} ms; "
        f"{len(speed.unindexed)} statements without an index"
    )
    for text in speed.missed():
        show(f"postal: missed: {text}")
    return int(bool(speed.missed()))


def _measured(postal: FreshPostal, folder: Path) -> PostalSpeed:
    mails = PostalMails(postal)
    for server in postal.servers.values():
        mails.many(server, QUEUED // len(postal.servers))
    guest = postal.guest()
    settings = {**postal.settings(guest), "MAILSLICE_ARTIFACTS": str(folder)}
    with _unindexed(postal, guest) as unindexed:
        list_seconds = _list_seconds(settings)
        report, run_seconds, longest_wait = _closed(postal, mails, settings)
    return PostalSpeed(
        list_seconds,
        report["closed"],
        run_seconds,
        report["closed"] / report["seconds"]["apply"] * 60,
        longest_wait,
        tuple(unindexed),
    )


def _closed(
    postal: FreshPostal, mails: PostalMails, settings: dict[str, str]
) -> tuple[dict[str, Any], float, float]:
    """The report of a run in mode close beside live workers, its seconds, their longest wait."""
    servers = list(postal.servers.values())
    for number in range(ZOMBIES):
        mails.mail(servers[number % len(servers)], Ended.HEADERS)
    words = ("duty", "run", "stuck_mails_postal", "--mode", "close", "--json")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MAILSLICE_")}
    with Player(postal, threads=WORKERS) as player:
        began = time.perf_counter()
        done = subprocess.run(
            [str(Path(sys.executable).with_name("mailslice")), *words],
            env=clean | settings,
            stdout=subprocess.PIPE,
            check=True,
        )
        run_seconds = time.perf_counter() - began
    return json.loads(done.stdout.splitlines()[-1]), run_seconds, player.records.longest_wait


@contextmanager
def _unindexed(postal: FreshPostal, guest: MariaDbLogin) -> Iterator[list[str]]:
    """Filled at the end with the statements of `guest` that used no index, as MariaDB logs them."""
    before = {name: postal.main.one(f"SELECT @@GLOBAL.{name}") for name in _LOGGED}
    statements: list[str] = []
    try:
        for name, value in _LOGGED.items():
            postal.main.run(f"SET GLOBAL {name} = {value}")
        yield statements
        logged = postal.main.rows(
            "SELECT DISTINCT CONVERT(sql_text USING utf8mb4) AS text FROM mysql.slow_log "
            "WHERE user_host LIKE %s",
            f"{guest.user}[%",
        )
        statements += [row["text"] for row in logged]
    finally:
        for name, value in before.items():
            postal.main.run(f"SET GLOBAL {name} = %s", value)


def _list_seconds(settings: dict[str, str]) -> float:
    databases = PostalDatabases(load_settings(settings, state_file=Path("/nonexistent")).postal)
    try:
        databases.main.rows("SELECT 1")
        seconds = []
        for _ in range(_LISTS):
            began = time.perf_counter()
            survey(databases)
            seconds.append(time.perf_counter() - began)
    finally:
        databases.close()
    return max(seconds)
