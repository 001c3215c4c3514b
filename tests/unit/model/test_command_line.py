"""Command lines that messages suggest: what a person pastes into a shell does what it says."""

import ast
import re
import shlex
from pathlib import Path

import pytest

import mailslice
from mailslice.model.command_line import command_line

PACKAGE = Path(mailslice.__file__).parent
ODD_NAMES = ("spool", "a b", "it's", "$(reboot)", "a;b", "ümläut", "#x", "~")
_COMMAND = re.compile(
    r"mailslice (blobs|decisions|duty|mail|postal|queue|report|stuck|worker)\b[^`')]*$"
)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_shell_reads_the_name_as_one_word(name):
    line = command_line("queue release", name, "--domain", name)
    assert shlex.split(line) == ["mailslice", "queue", "release", name, "--domain", name]


def test_a_plain_name_stays_as_it_is():
    assert command_line("queue size", "spool") == "mailslice queue size spool"


def unquoted(source):
    """Lines of f-strings in which a value, but for a constant, follows the words of a command."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            for part, after in zip(node.values, node.values[1:], strict=False):
                is_text = isinstance(part, ast.Constant) and isinstance(after, ast.FormattedValue)
                is_constant = is_text and getattr(after.value, "id", "").isupper()
                if is_text and not is_constant and _COMMAND.search(str(part.value)):
                    yield node.lineno


def test_the_check_of_the_sources_sees_an_unquoted_name():
    assert list(unquoted('f"a `mailslice queue create {name}` b"')) == [1]
    assert list(unquoted('f"try `mailslice config check`: {why}"')) == []


def test_no_message_puts_a_value_into_a_command_line_by_itself():
    places = [
        f"{file.relative_to(PACKAGE)}:{line}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for line in unquoted(file.read_text(encoding="utf-8"))
    ]
    assert places == []


def test_no_template_puts_a_value_into_a_command_line_by_itself():
    texts = {file.name: file.read_text("utf-8") for file in PACKAGE.rglob("templates/*.html")}
    assert len(texts) > 5
    assert [name for name, text in texts.items() if re.search(r"mailslice [a-z ]+\{\{", text)] == []
