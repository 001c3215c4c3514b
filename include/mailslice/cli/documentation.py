"""docs/cli.md, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

EXIT_CODES = (
    ("0", "done, whatever a duty found (that is in the JSON)"),
    ("1", "some inputs of the command failed and are listed, or `config check` found a difference"),
    (
        "2",
        "wrong use, input or setting; a user, password or key that a store refuses is one, and its address is named",
    ),
    ("3", "refused by a guard or a gate: nothing was changed"),
    ("4", "a store is unavailable"),
    ("130", "interrupted by Ctrl-C (143: by SIGTERM; 141: whoever read the output closed it)"),
)
_EVERYWHERE = ("--json", "--debug", "--help")


def cli_page() -> str:
    """The page: exit codes, then every command with its arguments and options."""
    from typer.main import get_command

    from mailslice.cli.main import app

    return "\n".join(_page(get_command(app))) + "\n"


def _page(root: Any) -> Iterator[str]:
    yield "# Command line"
    yield ""
    yield "Generated from the commands (`make docs`); a test compares. " + str(root.help)
    yield ""
    yield (
        "Every command takes `--json` (one JSON object a line, and nothing else on stdout) and `--debug` (tracebacks and logs), before its name or after it, "
        "and `--help` after it."
    )
    yield "Times are ISO 8601 in UTC; durations are `90s`, `15m`, `1h`, `30d` or ISO 8601. An error is one or two lines on stderr."
    yield ""
    yield from _table(("exit code", "means"), EXIT_CODES)
    for name, group in root.commands.items():
        yield ""
        yield f"## mailslice {name}"
        yield ""
        yield str(group.help)
        for word, command in group.commands.items():
            yield from _command(f"mailslice {name} {word}", command)


def _command(path: str, command: Any) -> Iterator[str]:
    arguments = [
        parameter for parameter in command.params if parameter.param_type_name == "argument"
    ]
    options = [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and not set(parameter.opts) & set(_EVERYWHERE)
    ]
    words = " ".join(_metavar(argument) for argument in arguments)
    yield ""
    yield f"### {path}{' ' if words else ''}{words}{' [OPTIONS]' if options else ''}"
    yield ""
    yield " ".join(str(command.help).split())
    rows = [(f"`{_metavar(argument)}`", _text(argument)) for argument in arguments]
    rows += [(f"`{', '.join(option.opts)}{_value(option)}`", _text(option)) for option in options]
    if rows:
        yield ""
        yield from _table(("argument or option", "what it is"), rows)


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _value(option: Any) -> str:
    choices = option.type_descriptor.choices
    if option.is_flag:
        return ""
    return " " + (
        "\\|".join(str(getattr(choice, "value", choice)) for choice in choices)
        if choices
        else str(option.metavar or "VALUE")
    )


def _text(parameter: Any) -> str:
    from mailslice.cli.output import cell

    extra = " Required." if parameter.required and parameter.param_type_name == "option" else ""
    if parameter.multiple:
        extra += " May be given several times."
    if parameter.default not in (None, False, (), []) and not parameter.required:
        extra += f" Default: `{cell(parameter.default)}`."
    return f"{parameter.help or ''}{extra}"


def _table(head: tuple[str, str], rows: Any) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "|---|---|"
    for left, right in rows:
        yield f"| {left} | {right} |"
