"""A run that is late, in a real Airflow: its triggerer tells, while the run goes on.

And the new alerts of a report, by the same webhook.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.acceptance.airflow_process import airflow_standalone, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

LATE = '''
"""A run that takes longer than it should."""
import os, time
from datetime import timedelta
from airflow.sdk import dag, task
from mailslice.airflow.notifier import DutyNotifier, notify_alerts
from mailslice.airflow.dag_settings import OneDag
from mailslice.airflow.duty_dag import Declaration, Tag, dag_arguments

declared = Declaration(
    duty="queue_size", doc="", tags=[Tag.READS],
    timeout=timedelta(minutes=10), deadline=timedelta(seconds=5),
)

@dag(dag_id="late", schedule=None, **dag_arguments(declared, OneDag(), DutyNotifier()))
def late():
    @task
    def slow():
        alert = {"name": "dead_letters", "value": 11, "limit": 10, "text": "11 messages"}
        alert |= {"since": "now", "told": "now"}
        report = {"duty": "queue_size", "queue": "spool", "run": "r1", "finished": "now"}
        notify_alerts({**report, "alerts": [alert]})
        for _ in range(400):  # until the test has seen it run
            if os.path.exists(SEEN):
                return
            time.sleep(1)
    slow()

late()
'''


@pytest.fixture
def hook():
    """What a webhook's server got, and its URL."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield got, f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()


def test_a_run_that_is_late_is_told_of_while_it_goes_on(tmp_path: Path, hook):
    got, url = hook
    dags = tmp_path / "dags"
    dags.mkdir()
    seen = tmp_path / "seen"
    (dags / "late.py").write_text(LATE.replace("SEEN", repr(str(seen))), encoding="utf-8")
    settings = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "MAILSLICE_DUTY_NOTIFY": "webhook",
        "MAILSLICE_DUTY_NOTIFY_WEBHOOK": url,
    }
    with airflow_standalone(tmp_path / "airflow", settings, dags=("late",)) as airflow:
        run = airflow.trigger("late", {})
        missed = until(
            "the deadline",
            300,
            lambda: next((each for each in got if each["reason"] == "deadline missed"), None),
        )
        assert (missed["dag"], missed["text"]) == (
            "late",
            f"late run {missed['run']}: deadline missed",
        )
        assert airflow.state("late", run) == "running"
        seen.touch()
        told = until(
            "the alert",
            60,
            lambda: next((each for each in got if each["reason"] == "alerts"), None),
        )
        assert told["text"] == "queue_size, queue spool: 11 messages (run r1)"
