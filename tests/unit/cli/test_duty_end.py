"""What `duty run --notify` tells when the run is ended from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.webhook import webhook

WITH_A_DOUBLE = """
import time
from mailslice.cli import main
from mailslice.maintenance import runner

def run_all(*_):
    print("began", flush=True)
    time.sleep(120)

runner.run_all = run_all
main.main()
"""


def test_a_run_that_a_deadline_ends_by_sigterm_is_told(tmp_path: Path) -> None:
    with webhook() as (posted, url):
        env = {
            **{name: value for name, value in os.environ.items() if "MAILSLICE" not in name},
            "MAILSLICE_ARTIFACTS": str(tmp_path),
            "MAILSLICE_DUTY_NOTIFY": "webhook",
            "MAILSLICE_DUTY_NOTIFY_WEBHOOK": url,
        }
        words = [sys.executable, "-c", WITH_A_DOUBLE, "duty", "run", "blob_gc", "--notify"]
        with subprocess.Popen(words, env=env, cwd=tmp_path, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"began\n"
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 143
            finally:
                process.kill()
    assert [message["text"] for message in posted] == ["blob_gc: ended by SIGTERM"]
