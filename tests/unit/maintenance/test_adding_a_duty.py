"""docs/adding-a-duty.md: its files are taken from the page, found by the registry, and run."""

import ast
import os
import re
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

import mailslice.duties
from mailslice.maintenance import gates, registry, runner
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.model.errors import PlanRefused
from mailslice.model.settings import clone_root, load_settings
from tests.services.duties.running import judged_plainly
from tests.unit.duties.judging import Locks
from tests.unit.maintenance.test_retries import Runs

PAGE = (clone_root() / "docs" / "adding-a-duty.md").read_text()
FILES = dict(
    re.findall(r"^## `([^`]+\.py)`\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
)
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
OLD = NOW - timedelta(days=100)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """The page's package beside the duties that there are, and stores that are doubles."""
    package = tmp_path / "duties" / "old_exports"
    package.mkdir(parents=True)
    for name, text in FILES.items():
        if "/duties/" in name:
            (package / name.rpartition("/")[2]).write_text(text)
    here = [*mailslice.duties.__path__, str(package.parent)]
    monkeypatch.setattr(mailslice.duties, "__path__", here)
    runs = Runs()
    own = SimpleNamespace(locks=Locks(), runs=runs)
    stores = SimpleNamespace(
        own=own,
        records=own,
        existing_runs=lambda: runs,
        prune_records=lambda: 0,
        management=SimpleNamespace(mail_queues=list, dead_letter_queues=list),
        own_blobs=SimpleNamespace(bucket_exists=lambda: False),
    )

    @contextmanager
    def opened(settings):
        stores.settings = settings
        yield stores

    monkeypatch.setattr(runner, "open_stores", opened)
    monkeypatch.setattr(gates, "run_gate", judged_plainly)
    yield load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path / "a")}, state_file=tmp_path / "none")
    for module in [name for name in sys.modules if ".old_exports" in name]:
        del sys.modules[module]


@pytest.fixture
def export(settings):
    """Writes an export of that age; its file."""
    partition = artifacts(settings)

    def one(name, written):
        partition.write(f"dead-letters/spool/{name}", b"x")
        os.utime(partition.path(f"dead-letters/spool/{name}"), (written.timestamp(),) * 2)

    one.files = lambda: [file.rpartition("/")[2] for file in partition.files("dead-letters")]
    return one


def request(**params):
    return RunRequest("old_exports", NO_QUEUE, "r1", params=params)


def run(settings, **params):
    return runner.run_all(request(**params), settings, clock=lambda: NOW)


def test_it_is_four_files_and_a_dag_under_250_lines():
    assert [name.rpartition("/")[2] for name in FILES] == [
        "__init__.py",
        "params.py",
        "duty.py",
        "old_exports.py",
        "old_exports.py",
    ]
    assert sum(len(text.splitlines()) for text in FILES.values()) < 250
    for text in FILES.values():
        ast.parse(text)
        assert max(map(len, text.splitlines())) <= 100


def test_the_dag_is_wired_as_the_others_are():
    """Line by line as dags/reclaim.py, but for names, texts and times."""

    def calls(text):
        nodes = ast.walk(ast.parse(text))
        return sorted(ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call))

    page = [name.replace("old_exports", "reclaim") for name in calls(FILES["dags/old_exports.py"])]
    assert sorted(page) == calls((clone_root() / "dags" / "reclaim.py").read_text())


def test_the_registry_finds_it_with_its_params(settings):
    assert "old_exports" in registry.names()
    found = registry.load("old_exports")
    assert found.summary == "Removes exported dead letters that are older than `keep_for`."
    assert (found.needs_queue, found.params().keep_for) == (False, timedelta(days=90))


def test_it_removes_what_is_old_and_nothing_else(settings, export):
    export("old", OLD)
    export("young", NOW)
    dry = run(settings, dry_run=True)
    assert (dry["status"], dry["planned"], export.files()) == ("dry run", 1, ["old", "young"])
    report = run(settings)
    assert (report["status"], report["message"]) == ("done", "1 exports removed")
    assert (report["planned"], report["applied"], report["exports"]) == (1, 1, 2)
    assert export.files() == ["young"]
    assert run(settings)["status"] == "nothing to do"


def test_what_was_written_again_since_the_plan_stays(settings, export):
    export("old", OLD)
    for step in ("plan", "check"):
        runner.run_step(step, request(), settings, clock=lambda: NOW)
    export("old", NOW)
    summary = runner.run_step("apply", request(), settings, clock=lambda: NOW)
    assert summary["skippedBy"] == {"written again since the plan": 1}
    assert export.files() == ["old"]


def test_an_edited_plan_removes_nothing(settings, export):
    export("old", OLD)
    for step in ("plan", "check"):
        runner.run_step(step, request(), settings, clock=lambda: NOW)
    partition = artifacts(settings)
    (plan,) = [file for file in partition.files("runs") if file.endswith("plan.json")]
    partition.write(plan, partition.read(plan).replace(b'"keepFor": 7776000.0', b'"keepFor": 1.0'))
    with pytest.raises(PlanRefused, match="was changed"):
        runner.run_step("apply", request(), settings, clock=lambda: NOW)
    assert export.files() == ["old"]
