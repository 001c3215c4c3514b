"""Examples of commands: each command has some, --help shows them, and their options exist."""

import pytest
from typer.main import get_command

from mailslice.cli.examples import PROMPT, examples_of, sessions
from mailslice.cli.main import app, run
from stack.cli_page import cli_page, commands_of
from tests.sessions import NOT_RUN
from tests.unit.docs.test_commands import wrong

TOOLS = {"bench"}
"""Groups of commands for developers."""
COMMANDS = [
    f"{group_name} {name}".strip()
    for group_name, group in get_command(app).commands.items()
    if group_name not in TOOLS
    for name in ([word for word, _ in commands_of(group)] if hasattr(group, "commands") else [""])
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command):
    assert list(examples_of(command)), (
        f"give `mailslice {command}` an example: include/mailslice/cli/examples.py"
    )


@pytest.mark.parametrize("command", sessions())
def test_an_example_is_of_a_command_and_options_that_exist(command):
    assert command in COMMANDS
    lines = [example.command for example in examples_of(command)]
    assert [problem for problem in map(wrong, lines) if problem] == []
    assert any(line.startswith(f"mailslice {command}") for line in lines)


def test_help_ends_with_the_command_lines_and_names_arguments_plainly(capsys):
    assert run(["queue", "size", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: mailslice queue size QUEUE [OPTIONS]\n")
    assert text.endswith(
        "Examples:\n  mailslice queue size spool\n  mailslice queue size spool --json\n"
    )
    assert "QueueName" not in text


def test_every_example_that_is_run_has_an_answer():
    silent = {"mail show --raw"}
    assert [
        example.command
        for command in sessions()
        if command not in NOT_RUN
        for example in examples_of(command)
        if not example.answer and command not in silent
    ] == []


def test_the_page_has_the_answers_too():
    page = cli_page()
    for example in examples_of("queue size"):
        assert f"{PROMPT}{example.command}\n{example.answer}\n" in page
