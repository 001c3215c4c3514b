"""docs/postal.md is followed: its grants, its settings, every command, cron line and unit."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mailslice.model.durations import parse_duration
from mailslice.model.settings import clone_root, variables
from mailslice.testing.postal.databases import FreshPostal
from mailslice.testing.postal.mails import Ended, PostalMails
from mailslice.testing.postal.schema import Version
from tests.acceptance.command import Cli
from tests.conftest import Fresh
from tests.sessions import is_answer, sessions

PAGE = (clone_root() / "docs" / "postal.md").read_text(encoding="utf-8")
UNITS = clone_root() / "deploy" / "systemd"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(params=[Version.V3_3, Version.V2_3], ids=["3.3", "2.3"])
def operators_postal(request: pytest.FixtureRequest, make_postal: Any) -> FreshPostal:
    postal: FreshPostal = make_postal(request.param)
    return postal


@pytest.fixture
def operator(operators_postal: FreshPostal, tmp_path: Path) -> Any:
    """The environment of somebody who typed the page's grants and settings, names replaced."""
    postal, user = operators_postal, f"p{operators_postal.name[1:]}"
    (sql,) = blocks("sql")
    sql = "\n".join(line for line in sql.splitlines() if not line.startswith("--"))
    own = postal.own.replace("_", r"\_")
    for name, ours in (
        ("mailslice.*", f"`{own}`.*"),
        ("'mailslice'@", f"'{user}'@"),
        ("`postal-server-", f"`{postal.prefix}-server-"),
        (" postal.", f" `{postal.name}`."),
    ):
        assert name in sql
        sql = sql.replace(name, ours)
    of_server = [one for one in sql.split(";") if "-server-1`" in one]
    try:
        for statement in [*sql.split(";"), *(one.replace("-1`", "-2`") for one in of_server)]:
            if statement.strip():
                postal.main.run(statement)
        named = re.findall(r"^(MAILSLICE_\w+)=", PAGE, re.MULTILINE)
        address = f"{postal.login.host}:{postal.login.port}/{postal.name}"
        url = f"mysql://{user}:{quote('a long password')}@{address}"
        assert named == ["MAILSLICE_POSTAL_URL", "MAILSLICE_ARTIFACTS"]
        yield Fresh(
            {
                "MAILSLICE_POSTAL_URL": url,
                "MAILSLICE_OWN_URL": url.replace(f"/{postal.name}", f"/{postal.own}"),
                "MAILSLICE_POSTAL_MESSAGE_PREFIX": postal.prefix,
                "MAILSLICE_ARTIFACTS": str(tmp_path / "artifacts"),
            }
        )
    finally:
        postal.main.run(f"DROP USER IF EXISTS '{user}'@'%'")


def test_the_page_is_answered_as_shown(
    operator: Fresh, operators_postal: FreshPostal, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    mails, servers = PostalMails(operators_postal), operators_postal.servers
    mails.mail(servers[1], Ended.HEADERS, locked_for=timedelta(hours=3))
    mails.mail(servers[1], Ended.HEADERS, locked_for=timedelta(hours=2.5))
    mails.mail(servers[2], Ended.LOCKED, locked_for=timedelta(hours=2))
    cli, wrong = Cli(operator.env).inside(), []
    typed = list(sessions(PAGE))
    assert len(typed) > 11
    for one in typed:
        line = one.command.replace("2026-11-24T09:30:00Z", f"{datetime.now(UTC):%FT%TZ}")
        answer = cli(*shlex.split(line)[1:])
        actual = answer.out.decode() + answer.err
        if not is_answer(one.answer, actual):
            wrong.append(f"$ {one.command}\n{actual}")
    assert "\n".join(wrong) == ""


def test_the_line_for_cron_names_settings_and_a_command_of_the_page() -> None:
    (line,) = re.findall(r"^\*/5 \* \* \* \* .+$", PAGE, re.MULTILINE)
    user, script = line.split(maxsplit=6)[5:]
    assert user == "mailslice"
    assert subprocess.run(["sh", "-n", "-c", script], check=False).returncode == 0
    exported = re.search(r"export ([A-Z_ ]+);", script)
    assert exported
    assert set(exported[1].split()) <= set(variables())
    assert "mailslice duty run stuck_mails_postal --notify --json" in script
    (folder,) = re.findall(r"^install -d -o mailslice .* (/\S+)$", PAGE, re.MULTILINE)
    (log,) = re.findall(r">>(\S+) ", script)
    assert Path(log).parent == Path(folder), "its user may write nowhere else"
    assert f"\nchown -R mailslice:mailslice {folder}\n" in PAGE, "root may have run duties there"
    (settings,) = re.findall(r"^install -D -g mailslice -m 0640 .* (/\S+)$", PAGE, re.MULTILINE)
    assert script.startswith(f". {settings};")
    assert f"EnvironmentFile={settings}" in (UNITS / "mailslice-postal.service").read_text()


def test_service_and_timer_are_units_of_systemd(tmp_path: Path) -> None:
    parsed = {}
    for file in UNITS.iterdir():
        parsed[file.suffix] = configparser.ConfigParser(strict=False)
        parsed[file.suffix].optionxform = str  # type: ignore[assignment,method-assign]
        parsed[file.suffix].read(file)
    service = parsed[".service"]["Service"]
    assert service["Type"] == "oneshot"
    words = service["ExecStart"].split()
    assert words[1:] == ["duty", "run", "stuck_mails_postal", words[4], "--notify", "--json"]
    option, _, limit = words[4].partition("=")
    deadline = parse_duration(service["TimeoutStartSec"].removesuffix("in"))
    assert option == "--time-limit"
    assert parse_duration(limit) <= deadline * 0.4, "plan and verify take time, too"
    assert parsed[".timer"]["Timer"]["OnCalendar"] == "*:0/5"
    if program := shutil.which("systemd-analyze"):
        for file in UNITS.iterdir():
            text = file.read_text().replace("/opt/mailslice/bin/mailslice", "/bin/true")
            (tmp_path / file.name).write_text(text)
        command = [program, "verify", *map(str, sorted(tmp_path.iterdir()))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        calendar = [program, "calendar", "*:0/5"]
        assert subprocess.run(calendar, capture_output=True, check=False).returncode == 0


def test_every_lock_of_the_page_is_released_by_no_hand() -> None:
    """The one statement that sends mails twice is named as such, and nowhere as an advice."""
    (at,) = [found.start() for found in re.finditer("locked_by = NULL", PAGE)]
    assert "Never unlock rows by" in PAGE[at - 80 : at]
