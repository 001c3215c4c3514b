"""`make test` and `make soak`: the services of the tests, then pytest, whose lines are the last."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from stack.airflow import SHORT_LIVED_JVM, airflow_environment
from stack.cassandra import nodetool_setting
from stack.mariadb import mariadb_setting
from stack.services import store_settings
from stack.settings import Profile, stack_settings
from stack.stack import own_stores, stop

_TESTS_FAILED = 1


def test(arguments: list[str]) -> int:
    """Runs all tiers, or what the arguments name, against services of its own.

    Gives pytest's exit code.
    """
    with nullcontext() if arguments else _tests_compiled():
        return _with_services(lambda environment: _pytest(arguments, environment))


def soak(arguments: list[str]) -> int:
    """Runs the tests marked `soak`, one after the other, or those of them that the arguments name.

    Gives pytest's exit code.
    """
    return _with_services(
        lambda environment: _run(["-m", "soak", "--timeout=1800", *arguments], environment)
    )


def _with_services(run: Callable[[Mapping[str, str]], int]) -> int:
    stack = stack_settings(Profile.TEST)

    def settings() -> Mapping[str, str]:
        spark = {"MAILSLICE_DUTY_SPARK_DRIVER_OPTIONS": SHORT_LIVED_JVM}
        stores = {**store_settings(stack), **mariadb_setting(stack)}
        return {**stores, **nodetool_setting(stack), **spark}

    with ExitStack() as services:
        with _rare_wake_ups():
            services.enter_context(own_stores(stack, settings, stop))
        return run(airflow_environment(stack, {}))


@contextmanager
def _rare_wake_ups() -> Iterator[None]:
    """Processes that are started inside have a timer slack of 1 ms, where Linux lets us set it.

    Cassandra's threads spin after each request, 60 us a turn: a fifth of its CPU where requests are
    rare.
    """
    slack = Path("/proc/self/timerslack_ns")
    before = slack.read_text() if slack.exists() else "0"
    with suppress(OSError):  # a container's /proc may be for reading
        slack.write_text("1000000")
    try:
        yield
    finally:
        with suppress(OSError):
            slack.write_text(before)


@contextmanager
def _tests_compiled() -> Iterator[None]:
    """While the services start, pytest compiles the tests of a clean checkout.

    Otherwise each of its processes does it by itself, all at once: 9 s of CPU each.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    root, silent = stack_settings(Profile.TEST).root, subprocess.DEVNULL
    with subprocess.Popen(command, cwd=root, stdout=silent, stderr=silent) as collecting:
        try:
            yield
        finally:
            collecting.terminate()


def _pytest(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Runs all tiers in parallel processes. On a busy machine some tests miss a deadline, so failed
    tests run once more, alone, and that result counts.
    """
    if arguments:
        return _run(arguments, environment)
    processes = stack_settings(Profile.TEST).sizes.test_processes
    # In the order of collection: tests of whole systems first, quick ones fill the end.
    spread = ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"]
    code = _run(spread, environment)
    if code != _TESTS_FAILED:
        return code
    print("\nmake test: what failed runs once more, one test at a time", flush=True)
    return _run(["--last-failed", "--last-failed-no-failures=none"], environment)


def _run(arguments: list[str], environment: Mapping[str, str]) -> int:
    stack = stack_settings(Profile.TEST)
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MAILSLICE_") or name.startswith("MAILSLICE_STACK_")
    }
    names = ("JAVA_HOME", "PATH", "GX_ANALYTICS_ENABLED", "PYTHONPATH", "NO_PROXY", "no_proxy")
    services = {name: environment[name] for name in names}
    tests = {
        **mariadb_setting(stack),
        "MAILSLICE_REQUIRE_SERVICES": "1",
        "MAILSLICE_TEST_SETTINGS": str(stack.settings_file),
        "MAILSLICE_TEST_SERVICES_END": "1",
    }
    command = [sys.executable, "-m", "pytest", "--durations=30", *arguments]
    process = subprocess.Popen(command, cwd=stack.root, env={**clean, **services, **tests})
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # pytest gets the signal, too, and ends by itself
        except SystemExit:
            process.terminate()
            process.wait()
            raise
