"""`pip install mailslice[airflow]`, from the wheel, beside the pinned versions, in a folder that is
no clone, by another user: DAGs and plugins, as docs/install.md says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from mailslice.maintenance import registry
from mailslice.model.settings import clone_root
from tests.acceptance.airflow_process import airflow_standalone
from tests.conftest import Fresh
from tests.wheel import Installed, build, installed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

PAGE = (clone_root() / "docs" / "install.md").read_text(encoding="utf-8")


def of_the_page(name: str) -> str:
    """The value that the page gives a variable."""
    [value] = re.findall(rf"^ +{name}='(.*)'$", PAGE, re.MULTILINE)
    return value


@dataclass(frozen=True, slots=True)
class Theirs:
    """An Airflow of somebody else, with the wheel in it."""

    there: Installed
    settings: dict[str, str]

    def __call__(self, *words: str) -> str:
        return self.there.run("airflow", *words, settings=self.settings, timeout=900).stdout

    def rows(self, *words: str) -> list[dict[str, str]]:
        """The table as JSON: what is printed after it and before it is a log."""
        output = self(*words, "--output", "json")
        found = re.search(r"^\[.*\]$", output, re.MULTILINE | re.DOTALL)
        return json.loads(found[0]) if found else []

    def mailslice(self, *words: str) -> list[dict[str, object]]:
        done = self.there.run("mailslice", *words, "--json", settings=self.settings)
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def theirs(fresh_module: Fresh, tmp_path_factory) -> Iterator[Theirs]:
    wheel = build(tmp_path_factory.mktemp("package")).wheel
    with installed(wheel, "airflow") as there:
        kept = {
            name: text for name, text in fresh_module.env.items() if name != "MAILSLICE_ARTIFACTS"
        }
        names = ("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", "AIRFLOW_CONN_SPARK_DEFAULT")
        settings = {
            **kept,
            **{name: of_the_page(name) for name in names},
            "AIRFLOW_HOME": str(there.home / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }
        airflow = Theirs(there, settings)
        airflow("db", "migrate")
        yield airflow


def test_the_plugins_are_met_once_each(theirs):
    plugins = theirs.rows("plugins")
    ours = {each["name"] for each in plugins if each["name"].startswith("mailslice")}
    assert ours == {"mailslice", "mailslice_timetables"}
    assert "already registered" not in theirs("plugins")


def test_the_bundle_has_a_dag_for_each_duty_and_no_import_error(theirs):
    theirs("dags", "reserialize")
    assert {each["dag_id"] for each in theirs.rows("dags", "list")} == {
        *registry.names(),
        "mail_actions",
    }
    assert theirs.rows("dags", "list-import-errors") == []
    assert theirs.rows("dags", "list-import-errors", "-B", "mailslice") == []


def test_the_folder_is_the_packages_own(theirs):
    [answer] = theirs.mailslice("airflow", "dags")
    assert str(answer["folder"]).startswith(f"{theirs.there.venv}/lib/")


def test_a_duty_runs_from_the_wheel(theirs, tmp_path):
    """Nothing of the clone is on the path of this Airflow."""
    theirs.mailslice("queue", "create", "spool", "--reason", "wheel")
    settings = {
        **theirs.settings,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "no-dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(tmp_path / "no-plugins"),
        "PYTHONPATH": "",
        "MAILSLICE_ARTIFACTS": str(tmp_path / "artifacts"),
    }
    python = theirs.there.venv / "bin" / "python"
    with airflow_standalone(
        tmp_path / "home", settings, dags=["queue_size"], python=python
    ) as airflow:
        airflow.connect("local[2]")
        run = airflow.trigger("queue_size", {"reason": "wheel", "dry_run": False})
        states = airflow.wait("queue_size", run)
    assert set(states.values()) == {"success"}, states
    [report] = theirs.mailslice("report", "last", "--duty", "queue_size", "--queue", "spool")
    assert (report["dagRun"], report["size"]) == (run, 0)
