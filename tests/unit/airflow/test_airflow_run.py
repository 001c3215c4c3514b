"""`mailslice airflow run`: a command with the settings of a connection of a real Airflow."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mailslice.cli.main import run
from mailslice.model.settings import clone_root
from stack.airflow_versions import BETWEEN, OLDEST, airflow_python
from stack.settings import Profile, stack_settings

SHOW = """
import json, os
words = ("MAILSLICE", "CONTEXT")
print(json.dumps({n: v for n, v in os.environ.items() if any(word in n for word in words)}))
raise SystemExit(7)
"""
# Airflow says on its stdout that it masks no secret of less than 5 characters.
EXTRA = {
    "MAILSLICE_S3_BUCKET": "eu-mail",
    "MAILSLICE_S3_ACCESS_KEY": "id",
    "MAILSLICE_S3_SECRET_KEY": "key",
}
MAILSLICE = ("-c", "from mailslice.cli.main import main; main()")


@pytest.fixture(
    scope="module",
    params=["pinned", *(pytest.param(one, marks=pytest.mark.soak) for one in (OLDEST, BETWEEN))],
)
def theirs(request, tmp_path_factory):
    """Runs Python with words, beside an Airflow whose database has the connection `mail-eu`."""
    python = Path(sys.executable)
    if request.param != "pinned":
        cache = stack_settings(Profile.TEST, dict(os.environ)).sizes.cache
        python = airflow_python(request.param, clone_root(), cache)
    others = {name: value for name, value in os.environ.items() if "MAILSLICE" not in name}
    environ = {
        **others,
        "PYTHONPATH": str(clone_root() / "include"),
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "MAILSLICE_CONNECTION": "eu_=mail-eu,us_=mail-us",
        "MAILSLICE_ARTIFACTS": "/runs",
        "MAILSLICE_S3_SECRET_KEY_FILE": "/shared",
        "EMPTY_OF_MAILSLICE": "",
    }

    def ask(*words, **more):
        return subprocess.run(
            list(map(str, words)),
            env={**environ, **more},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    airflow = python.with_name("airflow")
    assert ask(airflow, "db", "migrate").returncode == 0
    add = (airflow, "connections", "add", "mail-eu", "--conn-type", "generic", "--conn-extra")
    assert ask(*add, json.dumps(EXTRA)).returncode == 0
    return lambda *words, **more: ask(python, *MAILSLICE, "airflow", "run", *words, **more)


@pytest.mark.timeout(400)
def test_a_command_has_the_settings_of_the_connection_in_airflows_database(theirs):
    """And its exit code is that of `mailslice airflow run`. A closed pipe ends it."""
    script = 'grep SigIgn /proc/self/status >&2; exec "$0" -c "$1"'
    done = theirs("--deployment", "eu_", "--", "sh", "-c", script, sys.executable, SHOW)
    assert (done.returncode, json.loads(done.stdout)) == (
        7,
        {
            "MAILSLICE_ARTIFACTS": "/runs/eu_",
            **EXTRA,
            "EMPTY_OF_MAILSLICE": "",
        },
    ), done.stderr
    (ignored,) = re.findall(r"SigIgn:\s*(\w+)", done.stderr)
    assert not int(ignored, 16) & 1 << (signal.SIGPIPE - 1)
    done = theirs("--deployment", "us_", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'mail-us' is in no secrets backend, environment or database" in done.stderr


def test_a_program_that_is_not_there_is_named(monkeypatch, capsys):
    monkeypatch.setenv("MAILSLICE_CONNECTION", "mail")
    monkeypatch.setenv("AIRFLOW_CONN_MAIL", json.dumps({"extra": EXTRA}))
    before = dict(os.environ)
    assert run(["airflow", "run", "--", "no-such-command"]) == 2
    assert capsys.readouterr().err.endswith("no-such-command: No such file or directory\n")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("connection", "words", "message"),
    [
        ("", (), "MAILSLICE_CONNECTION is unset: it names the connections of Airflow"),
        ("eu_=a,us_=b", (), "--deployment '' is not allowed; allowed: 'eu_', 'us_'"),
        ("mail", ("--deployment", "eu_"), "--deployment 'eu_' is not allowed; allowed: ''"),
    ],
)
def test_a_deployment_that_is_not_named_is_refused(monkeypatch, capsys, connection, words, message):
    monkeypatch.setenv("MAILSLICE_CONNECTION", connection)
    assert run(["airflow", "run", *words, "--", "true"]) == 2
    assert message in capsys.readouterr().err
