"""Measures the memory of a function in a process that does nothing else: `measured.py MODULE
FUNCTION QUEUE FILE`, with settings from the environment.
"""

from __future__ import annotations

import asyncio
import importlib
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings, clone_root, load_settings


async def resident_growth(
    function: Callable[[Settings, Any, Path], Awaitable[None]], fresh: Any, queue: str, file: Path
) -> float:
    """MiB by which the peak memory of a process grew after its imports, until the end of
    `function(settings, queue, file)`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        function.__module__,
        function.__name__,
        queue,
        str(file),
        env=fresh.environ | {"PYTHONPATH": str(clone_root())},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode == 0
    return float(out)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    module, function, queue, file = sys.argv[1:5]
    wanted = getattr(importlib.import_module(module), function)
    import uvloop

    from mailslice.worker import open_worker

    async def measured() -> float:
        async with open_worker(load_settings(), QueueName(queue)):
            before = _peak()
        await wanted(load_settings(), QueueName(queue), Path(file))
        return _peak() - before

    print(uvloop.run(measured()))


if __name__ == "__main__":
    main()
