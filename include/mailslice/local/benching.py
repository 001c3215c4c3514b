"""`make bench`: the benchmarks of the command line, against the test services, nothing else beside them."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

import psutil

from mailslice.local.command_line import CommandLine
from mailslice.local.pages import write as write_pages
from mailslice.local.services import check_disk, store_settings
from mailslice.local.settings import Profile, stack_settings
from mailslice.local.stack import Stack, one_at_a_time, remove
from mailslice.local.steps import Steps
from mailslice.model.settings import clone_root

PERFORMANCE_PAGE = clone_root() / "docs" / "performance.md"


def bench(arguments: list[str]) -> int:
    """Runs `mailslice bench` with these words; without any, all of it, and writes docs/performance.md with its JSON, from which docs/scale.md is computed.

    Gives its exit code; after one that failed no page is written anew.
    """
    stack = stack_settings(Profile.TEST)
    steps = Steps()
    with one_at_a_time(stack):
        remove(stack)
        check_disk(stack)
        settings = {
            **store_settings(stack),
            "MAILSLICE_ARTIFACTS": str(stack.state / "artifacts"),
            "MAILSLICE_QUEUE_SHARED": "false",
        }
        Stack(stack, steps, settings, with_airflow=False).start()
        try:
            steps.console.print(
                f"{datetime.now(UTC):%Y-%m-%d}, {psutil.cpu_count()} cores, {psutil.virtual_memory().total // 2**30} GiB, {platform.platform()}"
            )
            code = CommandLine(settings).show(
                "bench", *(arguments or ("all", "--write", str(PERFORMANCE_PAGE)))
            )
            if code == 0 and not arguments:
                write_pages(stack.root)
        finally:
            remove(stack)
    return code
