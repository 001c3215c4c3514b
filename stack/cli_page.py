"""docs/cli.md, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mailslice.cli.examples import PROMPT, examples_of
from mailslice.cli.output import cell

_HEAD = """\
# Command line

Generated from the commands (`make docs`); a test compares. {help}

Every command takes `--json` (one JSON object a line, and nothing else on stdout) and `--debug`
(tracebacks and logs), before its name or after it, and `--help` after it.
Times are ISO 8601 in UTC; durations are `90s`, `15m`, `1h`, `30d`, `0` or ISO 8601.
An error is one or two lines on stderr.

| exit code | means |
|---|---|
| 0 | done, whatever a duty found (that is in the JSON) |
| 1 | some inputs of the command failed and are listed, or `config check` found a difference |
| 2 | wrong use, input or setting, or a login that a store refuses (its address is named) |
| 3 | refused by a guard or a gate; after `verify`, the report says what apply has done |
| 4 | a store is unavailable, or Spark lost an executor, memory or disk: try again |
| 130 | interrupted by Ctrl-C (143: by SIGTERM; 141: whoever read the output closed it) |"""
_EVERYWHERE = {"--json", "--debug", "--help"}


def cli_page() -> str:
    """The page: exit codes, then every command with its arguments and options."""
    from typer.main import get_command

    from mailslice.cli.main import app

    return "\n".join(_page(get_command(app))) + "\n"


def _page(root: Any) -> Iterator[str]:
    yield _HEAD.format(help=root.help)
    for name, group in root.commands.items():
        if not hasattr(group, "commands"):
            yield from _command(f"mailslice {name}", group, "##")
            continue
        yield f"\n## mailslice {name}\n\n{group.help}"
        for word, command in commands_of(group):
            yield from _command(f"mailslice {name} {word}", command)


def commands_of(group: Any) -> Iterator[tuple[str, Any]]:
    """The commands of a group with their names, those of groups within it, too."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{word} {inner}", one) for inner, one in commands_of(command))
        else:
            yield word, command


def _command(path: str, command: Any, level: str = "###") -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [
        one
        for one in command.params
        if one.param_type_name == "option" and _EVERYWHERE.isdisjoint(one.opts)
    ]
    words = [path, *map(_metavar, arguments), *(["[OPTIONS]"] if options else [])]
    yield f"\n{level} {' '.join(words)}\n\n{' '.join(str(command.help).split())}"
    rows = [(_metavar(argument).replace("|", "\\|"), argument) for argument in arguments]
    rows += [(f"{', '.join(option.opts)}{_value(option)}", option) for option in options]
    if rows:
        yield "\n| argument or option | what it is |\n|---|---|"
        yield from (f"| `{name}` | {_text(one)} |" for name, one in rows)
    yield from _session(path.partition(" ")[2])


def _session(command: str) -> Iterator[str]:
    examples = list(examples_of(command))
    if examples:
        yield "\n```console"
        for example in examples:
            yield f"{PROMPT}{example.command}"
            yield from filter(None, [example.answer])
        yield "```"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _value(option: Any) -> str:
    if option.is_flag:
        return ""
    choices = [str(getattr(one, "value", one)) for one in option.type_descriptor.choices or ()]
    return " " + ("\\|".join(choices) or str(option.metavar or "VALUE"))


def _text(parameter: Any) -> str:
    extra = " Required." if parameter.required and parameter.param_type_name == "option" else ""
    if parameter.multiple:
        extra += " May be given several times."
    if parameter.default not in (None, False, (), []) and not parameter.required:
        extra += f" Default: `{cell(parameter.default)}`."
    return f"{parameter.help or ''}{extra}"
