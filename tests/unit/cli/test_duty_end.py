"""What `duty run --notify` tells when the run is ended from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
WITH_AN_ALERT = """
from mailslice.cli import main
from mailslice.maintenance import runner

ALERT = {"name": "dead_letters", "text": "50 messages are dead", "told": "12:00"}
ABOUT = {"duty": "blob_gc", "queue": None, "run": "r1", "finished": "12:00"}
runner.run_all = lambda *_: {**ABOUT, "status": "done", "alerts": [ALERT]}
runner.record_unsent_alerts = lambda report, settings: print("untold:", report["run"])
main.main()
"""


def environment(folder: Path, url: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if "MAILSLICE" not in name},
        "MAILSLICE_ARTIFACTS": str(folder),
        "MAILSLICE_DUTY_NOTIFY": "log,webhook",
        "MAILSLICE_DUTY_NOTIFY_WEBHOOK": url,
    }


@pytest.mark.parametrize(("path", "untold"), [("/refused", True), ("", False)])
def test_an_alert_that_no_channel_took_is_left_to_the_next_run(
    tmp_path: Path, path: str, untold: bool
) -> None:
    with webhook() as (posted, url):
        words = [sys.executable, "-c", WITH_AN_ALERT, "duty", "run", "blob_gc", "--notify"]
        env = environment(tmp_path, url + path)
        said = subprocess.check_output(words, env=env, cwd=tmp_path, timeout=120)
    assert (len(posted), b"untold: r1" in said) == (1, untold)


def test_a_run_that_a_deadline_ends_by_sigterm_is_told(tmp_path: Path) -> None:
    with webhook() as (posted, url):
        env = environment(tmp_path, url)
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
