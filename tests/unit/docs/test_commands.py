"""The commands that pages show exist, with the options that they show."""

import re

import pytest

from mailslice.cli.documentation import cli_page
from mailslice.maintenance import registry
from mailslice.model.settings import clone_root

ROOT = clone_root()
GENERATED = ("cli.md", "settings.md", "performance.md")
PAGES = [
    *(page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
SECTIONS = dict(
    re.findall(
        r"^#+ mailslice ([a-z][a-z -]*[a-z])(.*?)(?=^#|\Z)", cli_page(), re.MULTILINE | re.DOTALL
    )
)
EVERYWHERE = {"--json", "--debug", "--help"}


def commands_of(text: str) -> list[str]:
    """Inline code and lines of fenced blocks that begin with `mailslice`."""
    blocks = "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))
    inline = re.findall(r"(?<!`)`(mailslice [a-z][^`]*)`", text)
    lines = re.findall(r"^ *(?:\$ )?(?:\.venv/bin/)?(mailslice [a-z].*)$", blocks, re.MULTILINE)
    return [re.sub(r"\s+", " ", command.partition("#")[0]) for command in inline + lines]


def wrong(line: str) -> str | None:
    """What the command line does not know of this command, or of the one that it runs."""
    line, _, inner = line.partition(" -- ")
    if inner.startswith("mailslice") and (problem := wrong(inner)):
        return problem
    words = re.sub(r'"[^"]*"', "TEXT", line).split()[1:]
    name = " ".join(words[:3] if " ".join(words[:3]) in SECTIONS else words[:2])
    section = SECTIONS.get(name, SECTIONS.get(words[0]))
    if section is None or (name not in SECTIONS and len(words) > 1 and words[1][0].islower()):
        return f"{line}: no such command"
    known = EVERYWHERE | set(re.findall(r"--[a-z-]+", section))
    if words[0] == "duty" and len(words) > 2 and words[2] in registry.names():
        params = registry.load(words[2]).params.model_fields
        known |= {f"--{param.replace('_', '-')}" for param in params}
    unknown = [word for word in words if word.startswith("--") and word not in known]
    return f"{line}: no option {', '.join(unknown)}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_is_one(page):
    commands = commands_of(page.read_text(encoding="utf-8"))
    assert [problem for problem in map(wrong, commands) if problem] == []


@pytest.mark.parametrize(
    "line",
    [
        "mailslice queue dance spool",
        "mailslice queue size spool --loud",
        "mailslice duty run queue_cleanup --queue spool --settle 5m",
        "mailslice airflow run --deployment eu_ -- mailslice queue size --loud",
    ],
)
def test_a_command_that_does_not_exist_is_found(line):
    assert wrong(line)
