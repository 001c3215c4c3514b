"""The report step deletes own rows in MariaDB whose end is over, and never what is quarantined."""

from __future__ import annotations

import pytest

from mailslice.testing.postal.databases import FreshPostal
from mailslice.testing.postal.mails import Ended, PostalMails
from tests.acceptance.command import Cli
from tests.conftest import Fresh


@pytest.fixture
def cli(postal_env: Fresh) -> Cli:
    return Cli(postal_env.env).inside()


def count(postal: FreshPostal, table: str) -> int:
    return int(postal.main.one(f"SELECT COUNT(*) FROM `{postal.own}`.`{table}`"))


def end_all(postal: FreshPostal, table: str) -> None:
    """As if the retention were over; rows without an end have none afterwards."""
    past = "expires_at = expires_at - INTERVAL 10 YEAR"
    postal.main.run(f"UPDATE `{postal.own}`.`{table}` SET {past}")


def test_ended_runs_and_decisions_go_with_the_next_report(
    cli: Cli, postal: FreshPostal, mails: PostalMails
) -> None:
    mails.mail(postal.servers[1], Ended.LOCKED)
    cli("duty", "run", "stuck_mails_postal", "--mode", "close")
    tables = ("runs", "postal_decisions", "postal_quarantine")
    assert [count(postal, table) for table in tables] == [1, 1, 1]
    for table in tables:
        end_all(postal, table)
    cli("duty", "run", "stuck_mails_postal", "--mode", "close")
    assert [count(postal, table) for table in tables] == [1, 0, 1]


def test_more_rows_than_one_statement_deletes_go_too(cli: Cli, postal: FreshPostal) -> None:
    cli("duty", "run", "stuck_mails_postal")
    columns = [row["Field"] for row in postal.main.rows(f"DESCRIBE `{postal.own}`.runs")]
    others = ", ".join(f"`{name}`" for name in columns if name not in {"run", "expires_at"})
    postal.main.run(
        f"INSERT INTO `{postal.own}`.runs (run, expires_at, {others}) "
        f"SELECT CONCAT(run, '-', seq), '2020-01-01', {others} "
        f"FROM `{postal.own}`.runs, seq_1_to_2500"
    )
    cli("duty", "run", "stuck_mails_postal")
    assert count(postal, "runs") == 2
