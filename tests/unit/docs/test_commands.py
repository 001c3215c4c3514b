"""The commands that pages show exist, with the options that they show."""

import re
import shlex
from typing import Any

import pytest
from typer.exceptions import TyperException
from typer.main import get_command

from mailslice.cli.main import app
from mailslice.model.errors import MailsliceError
from mailslice.model.settings import clone_root

ROOT = clone_root()
GENERATED = ("cli.md", "settings.md", "performance.md")
PAGES = [
    *(page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]


def commands_of(text: str) -> list[str]:
    """Inline code and lines of fenced blocks that begin with `mailslice`."""
    text = text.replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))
    inline = re.findall(r"(?<!`)`(mailslice [a-z][^`]*)`", text)
    lines = re.findall(r"^ *(?:\$ )?(?:\.venv/bin/)?(mailslice [a-z].*)$", blocks, re.MULTILINE)
    return [re.sub(r"\s+", " ", command.partition("#")[0]) for command in inline + lines]


def wrong(line: str) -> str | None:
    """Why the command line refuses this command, or the one that it runs.

    Values are not judged: pages write NAME and ID. A command alone is mentioned, not shown.
    """
    words = shlex.split(line)[1:]
    command: Any = get_command(app)
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return f"{line}: no such command"
        command = command.commands[words.pop(0)]
    if not words or "..." in words or hasattr(command, "commands"):
        return None
    try:
        context = command.make_context("mailslice", words)
    except MailsliceError:
        return None
    except TyperException as error:
        return f"{line}: {error.format_message()}"
    inner = context.params.get("words") or []
    return wrong(shlex.join(inner)) if inner[:1] == ["mailslice"] else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_is_one(page):
    commands = commands_of(page.read_text(encoding="utf-8"))
    assert [problem for problem in map(wrong, commands) if problem] == []


@pytest.mark.parametrize(
    "line",
    [
        "mailslice queue dance spool",
        "mailslice queue size spool --loud",
        "mailslice queue size spool outgoing",
        "mailslice worker run spool",
        "mailslice duty run queue_cleanup --queue spool --settle 5m",
        "mailslice airflow run --deployment eu_ -- mailslice queue size --loud",
    ],
)
def test_a_command_that_does_not_exist_is_found(line):
    assert wrong(line)
