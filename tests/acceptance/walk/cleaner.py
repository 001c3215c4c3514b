"""The cleanup of a walk: `cleaner.py WHO JOURNAL SEED GRACE QUEUE`.

Repeats queue_cleanup in this process, without Spark, until SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from itertools import count
from pathlib import Path

from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import run_all
from mailslice.model.errors import MailsliceError
from mailslice.model.settings import load_settings
from tests.acceptance.walk.books import Journal
from tests.services.duties.running import without_pages
from tests.services.duties.world import in_process

EVERY = 1.5


def main() -> None:
    who, path, seed, grace, queue = sys.argv[1:6]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    journal, settings = Journal(Path(path), who), load_settings()
    journal.write("ready")
    for number in count():
        if stop.wait(EVERY):
            return
        try:
            report = run_all(
                RunRequest(
                    "queue_cleanup", queue, f"walk-{seed}-{who}-{number}", params={"grace": grace}
                ),
                settings,
                tools=in_process(evaluator=without_pages),
            )
        except MailsliceError as error:
            journal.write("clean-failed", why=f"{type(error).__name__}: {error}")
        else:
            journal.write(
                "cleaned" if report["applied"] else "nothing-to-clean",
                applied=report["applied"],
                marks=report["marks"],
            )


if __name__ == "__main__":
    main()
