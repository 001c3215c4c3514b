"""The DAG files, parsed in a process of their own, as tests check their imports and the time of
parsing. No database, no scheduler.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Airflow creates its home at import, and test_steps.py imports it in this process: keep it out of
# the user's home.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="mailslice-airflow-"))


def parse(home, python=sys.executable, **environ):
    """The output of `parse_dags.py` for the DAG files."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAILSLICE_", "AIRFLOW"))
    }
    given = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(ROOT / "include"),
        **environ,
    }
    script = Path(__file__).with_name("parse_dags.py")
    done = subprocess.run(
        [python, script, ROOT / "dags"],
        env=clean | given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session")
def parsed(tmp_path_factory):
    return parse(tmp_path_factory.mktemp("airflow"))


@pytest.fixture(scope="session")
def parsed_quiet(tmp_path_factory):
    """The DAG files parsed with all schedules off."""
    return parse(tmp_path_factory.mktemp("airflow"), MAILSLICE_STACK_SCHEDULES="off")
