"""The DAG stuck_mails_postal in a real Airflow, by its scheduler, for a Postal and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from mailslice.testing.postal.databases import FreshPostal
from mailslice.testing.postal.mails import Ended, PostalMails
from tests.acceptance.airflow_process import Airflow, airflow_standalone
from tests.acceptance.command import Cli
from tests.conftest import Fresh

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
DAG = "stuck_mails_postal"


@pytest.fixture
def airflow(postal_env: Fresh, tmp_path: Path) -> Iterator[Airflow]:
    settings = {**postal_env.env, "MAILSLICE_STACK_SCHEDULES": "on"}
    with airflow_standalone(tmp_path / "airflow", settings, dags=[DAG]) as running:
        yield running


def test_a_zombie_is_closed_once_by_the_dag(
    airflow: Airflow, postal: FreshPostal, mails: PostalMails, postal_env: Fresh
) -> None:
    assert airflow.api("GET", f"dags/{DAG}")["timetable_summary"] == "*/5 * * * *"
    mails.mail(postal.servers[1], Ended.HEADERS, locked_for=timedelta(hours=3))
    mails.mail(postal.servers[2], Ended.LOCKED, locked_for=timedelta(hours=2))
    reports = []
    for _ in range(2):
        run = airflow.trigger(DAG, {"reason": "night shift", "dry_run": False, "mode": "close"})
        states = airflow.wait(DAG, run)
        assert set(states.values()) == {"success"}, states
        cli = Cli(postal_env.env).inside()
        report = next(
            one for one in cli.json("report", "list", "--duty", DAG) if one["dagRun"] == run
        )
        reports.append((report["found"], report["closed"], report["failed"]))
    assert reports == [(2, 2, 0), (0, 0, 0)]
