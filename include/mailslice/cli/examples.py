"""Example sessions of the commands: `--help` shows the command lines, docs/cli.md the answers, too.

They are in examples.txt, a heading for each command. Lines that begin with `$ ` are typed, others
are the answer. `...` stands for any text; times, ids and durations differ from run to run. A test
types them in that order and compares.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Example:
    """One command line with its answer: stdout, then stderr."""

    command: str
    answer: str


@cache
def sessions() -> Mapping[str, str]:
    """Command -> its session, in the order of the file."""
    text = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def examples_of(command: str) -> Iterator[Example]:
    """The examples of a command, such as `queue size`; none where it has none."""
    session = sessions().get(command, "").strip("\n")
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        line, _, answer = part.partition("\n")
        yield Example(line, answer.rstrip("\n"))


class ExampleCommand(TyperCommand):
    """A command whose --help names its arguments as docs/cli.md does, and ends with examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line, without typer's braces: `QUEUE [OPTIONS]`."""
        arguments = [str(arg.metavar or arg.name.upper()) for arg in self._arguments(ctx)]
        return [*arguments, "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then options; typer would show the Python type of an argument's parser."""
        arguments = [
            (str(arg.metavar or arg.name.upper()), arg.help) for arg in self._arguments(ctx)
        ]
        options = [
            option.get_help_record(ctx)
            for option in self.get_params(ctx)
            if option.param_type_name == "option"
        ]
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows := [row for row in rows if row is not None]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The command lines as they are typed: nothing is wrapped."""
        name = ctx.command_path.partition(" ")[2]
        if lines := [example.command for example in examples_of(name)]:
            formatter.write("\nExamples:\n")
            formatter.write("".join(f"  {line}\n" for line in lines))

    def _arguments(self, ctx: Any) -> list[Any]:
        return [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
