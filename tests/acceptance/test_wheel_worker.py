"""`pip install mailslice[worker]`, from the wheel, in a folder that is no clone, by another user:
every command of queue, mail, worker and config works, and the others name the extra they need.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Fresh
from tests.wheel import Installed, build, installed

pytestmark = [pytest.mark.new_keyspaces, pytest.mark.timeout(600)]

MAIL = b"From: a@x.example\r\nTo: b@y.example\r\nSubject: 1\r\n\r\nbody\r\n"
HANDLER = 'def note(mail, content):\n    print("handled", len(content), flush=True)\n'
COMMANDS = """
import json, typer
from mailslice.cli.main import app
groups = typer.main.get_command(app).commands
print(json.dumps({name: sorted(getattr(group, "commands", ())) for name, group in groups.items()}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("package")).wheel


@pytest.fixture(scope="module")
def worker(wheel) -> Iterator[Installed]:
    with installed(wheel, "worker") as there:
        yield there


@dataclass
class Session:
    """Commands of one user against one set of stores, and which of them were given."""

    there: Installed
    settings: dict[str, str]
    given: set[str] = field(default_factory=set)

    def __call__(self, line: str, code: int = 0) -> list[dict[str, Any]]:
        words = line.split()
        self.given.add(" ".join(words[:2]))
        done = self.there.run("mailslice", *words, "--json", settings=self.settings, code=code)
        return [json.loads(each) for each in done.stdout.splitlines()]

    def started(self, line: str) -> subprocess.Popen[str]:
        words = line.split()
        self.given.add(" ".join(words[:2]))
        user = self.there.user
        return subprocess.Popen(
            [self.there.venv / "bin" / "mailslice", *words],
            cwd=self.there.home,
            env=self.there.environ(self.settings),
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed, once SIGTERM has ended it."""
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode in (0, 128 + signal.SIGTERM), output
    return output


@pytest.fixture
def session(worker, fresh: Fresh) -> Session:
    settings = {name: text for name, text in fresh.env.items() if name != "MAILSLICE_ARTIFACTS"}
    (worker.home / "mail.eml").write_bytes(MAIL)
    (worker.home / "handlers.py").write_text(HANDLER)
    return Session(worker, settings)


@pytest.mark.soak
def test_every_command_of_queue_mail_worker_and_config_works(session):
    call, home = session, session.there.home
    call("queue create spool --reason first")
    call("config show")
    call("config check")
    call("config apply")
    call("config shared false")
    names = [call("mail enqueue spool mail.eml")[0]["name"] for _ in range(4)]
    call("mail enqueue spool mail.eml --delay 1d")
    assert [each["queue"] for each in call("queue list")] == ["spool"]
    assert call("queue size spool")[0]["size"] == 5
    assert call("queue show spool")
    assert {each["name"] for each in call("queue browse spool")} >= set(names)
    assert call("queue shape spool")
    assert call("queue slices spool")
    assert call("queue audit spool", code=2) == []
    assert call("queue dead spool") == []
    assert call(f"mail show spool --name {names[0]}")[0]["recipients"] == ["b@y.example"]
    assert call(f"mail trace {names[0]}")[0]["answer"] == "yes"
    call("queue export spool out")
    assert len(list((home / "out").glob("*.eml"))) == 5
    [deleted] = call(f"queue delete spool --name {names[0]} --yes --reason wrong")
    assert [each["name"] for each in call("queue deleted spool")] == [names[0]]
    call(f"queue undelete spool --run {deleted['run']} --yes")
    call(f"queue delete spool --name {names[0]} --yes --no-undo")
    call("queue hold spool --domain held.example --for 1h --reason slow")
    assert [each["domain"] for each in call("queue holds")] == ["held.example"]
    call("queue release spool --domain held.example --reason over")
    assert len(call("worker drain spool --max 1")) == 1
    call("worker top spool --once")
    call("queue flush spool")
    call("queue create other")
    call("queue retry spool --domain nowhere.example")
    call("queue move spool other --domain nowhere.example --yes")
    delay = "queue delay spool --for 1h --domain nowhere.example --dry-run"
    call(delay, code=3)  # without a worker nobody would bring them back
    process = call.started("worker run --queue spool --handler handlers:note")
    try:
        deadline = time.monotonic() + 60
        while call("queue size spool")[0]["size"] and time.monotonic() < deadline:
            time.sleep(0.2)
        call(delay)
    finally:
        output = ended(process)
    assert output.count(f"handled {len(MAIL)}") == 3, output
    process = call.started("worker smtp-in --queue spool --host 127.0.0.1 --port 0")
    try:
        first = process.stdout.readline()
    finally:
        ended(process)
    assert "127.0.0.1" in first
    moved = call("mail enqueue spool mail.eml")[0]["name"]
    assert call(f"queue move spool other --name {moved} --yes")
    assert call("queue size other")[0]["size"] == 1
    call("queue clear spool --yes")
    commands = json.loads(session.there.run("python", "-c", COMMANDS, settings={}).stdout)
    wanted = {
        f"{group} {name}"
        for group in ("queue", "mail", "worker", "config")
        for name in commands[group]
    }
    assert wanted <= session.given
    assert "bench" not in commands


def test_who_did_what_is_kept_below_the_users_own_folder(session):
    session("queue create kept --reason why")
    decisions = session.there.home / ".local" / "state" / "mailslice" / "artifacts" / "decisions"
    kept = [json.loads(file.read_text()) for file in decisions.rglob("*.json")]
    assert ("queue create", "why") in {(each["action"], each["reason"]) for each in kept}


@pytest.mark.parametrize(
    "line",
    [
        "duty run queue_cleanup --queue spool",
        "duty plan queue_audit --queue spool",
        "duty run blob_gc",
    ],
)
def test_a_duty_names_its_extra_before_it_does_anything(worker, line):
    """Without any store in the settings: nothing is asked of one."""
    done = worker.run("mailslice", *line.split(), settings={}, code=2)
    command = " ".join(line.split()[:2])
    assert done.stderr == (
        f"mailslice: {command} needs the extra `duties`: pip install "
        "'mailslice[duties]' (the module great_expectations is missing)\n"
    )


def test_without_an_extra_help_works_and_a_command_names_the_extra(wheel, stack):
    with installed(wheel) as there:
        help_text = there.run("mailslice", "--help", settings={}).stdout
        assert "--install-completion" in help_text
        assert there.run("mailslice", "duty", "list", settings={}).stdout
        dags = there.run("mailslice", "airflow", "dags", settings={}).stdout.strip()
        assert dags.startswith(f"{there.venv}/lib/")
        assert "queue_cleanup.py" in {file.name for file in Path(dags).iterdir()}
        done = there.run("mailslice", "queue", "list", settings=stack, code=2)
        assert done.stderr.startswith(
            "mailslice: queue list needs the extra `worker`: pip install "
            "'mailslice[worker]' (the module "
        )
