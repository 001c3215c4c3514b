"""Options of `mailslice duty STEP DUTY`, one a param: `--older-than` is the param older_than."""

import inspect
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from mailslice.cli.arguments import check_text
from mailslice.cli.selection import FilterCommand
from mailslice.maintenance import registry
from mailslice.maintenance.params import DutyParams, ParamShape, param_shapes
from mailslice.model.errors import BadInput

_PARAMS_KEY = "mailslice.maintenance.params"
"""Key in the command's context of the given params."""
_COMMON = {"reason", "dry_run"}
"""Options of every duty, which the commands declare themselves."""
_WITH_VALUE = {"--queue", "--reason", "--param", "--run"}
_SWITCHES = {"--dry-run", "--json", "--debug", "--help"}
_METAVARS = {timedelta: "DURATION", datetime: "TIME", int: "N", float: "NUMBER"}


class DutyCommand(FilterCommand):
    """A command with the options of the duty that its arguments name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse with the duty's options. An unknown duty is reported before its options."""
        name = duty_in(args, registry.names())
        without_duty = [*self.params]
        try:
            if name is None:
                if (word := _first_word(args)) is not None:
                    registry.load(word)
            else:
                self.params = [*without_duty, *options_of(registry.load(name).params)]
            return super().parse_args(ctx, args)
        finally:
            # --help is printed while parsing; the next command line may name another duty.
            self.params = without_duty


def duty_in(args: Sequence[str], known: Sequence[str]) -> str | None:
    """The duty that a command line names: the first known word that is no option's value."""
    pairs = zip(args, ["", *args], strict=False)
    words = (word for word, previous in pairs if previous not in _WITH_VALUE)
    return next((word for word in words if word in known), None)


def _first_word(args: Sequence[str]) -> str | None:
    """The word meant as a duty when none is known. A word after an option is likely its value."""
    words = [
        (word, previous)
        for word, previous in zip(args, ["", *args], strict=False)
        if not word.startswith("-") and previous not in _WITH_VALUE
    ]

    def likely_value(pair: tuple[str, str]) -> bool:
        return pair[1].startswith("-") and "=" not in pair[1] and pair[1] not in _SWITCHES

    return min(words, key=likely_value)[0] if words else None


def options_of(params: type[DutyParams]) -> list[Any]:
    """One option a param. Values stay text: the duty's params check them."""

    def carrier(**_: Any) -> None:
        """Only its signature is used."""

    own = [_option(param) for param in param_shapes(params) if param.name not in _COMMON]
    carrier.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    carrier.__annotations__ = {option.name: option.annotation for option in own}
    app = typer.Typer(add_completion=False)
    app.command()(carrier)
    return list(typer.main.get_command(app).params)


def _option(param: ParamShape) -> inspect.Parameter:
    word = param.name.replace("_", "-")
    shared: dict[str, Any] = {"help": param.text, "expose_value": False, "callback": _store_param}
    kind: Any
    if param.kind == "boolean":
        kind = Annotated[bool | None, typer.Option(f"--{word}/--no-{word}", **shared)]
    else:
        many = param.kind == "array"
        metavar = next((text for kind, text in _METAVARS.items() if kind in param.types), "TEXT")
        default = None if many else param.default_text
        option = typer.Option(f"--{word}", metavar=metavar, show_default=default or False, **shared)
        kind = Annotated[list[str] | None, option] if many else Annotated[str | None, option]
    return inspect.Parameter(
        param.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind
    )


def _store_param(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    if value is not None and value != [] and param.name is not None:
        words = value
        if isinstance(value, list | tuple):
            words = [word.strip() for text in value for word in text.split(",") if word.strip()]
        check_text(f"--{param.name.replace('_', '-')}", words)
        ctx.meta.setdefault(_PARAMS_KEY, {})[param.name] = words
    return value


def with_options(ctx: Any, params: dict[str, object]) -> dict[str, object]:
    """The params, and those that this command line gave as options: text, switches, lists of text.

    Raises BadInput when the same param was given as option and by --param.
    """
    options: dict[str, object] = ctx.meta.get(_PARAMS_KEY, {})
    for name in options.keys() & params.keys():
        raise BadInput(
            f"--param {name}: it was given as --{name.replace('_', '-')}, too; allowed is "
            "one of them"
        )
    return params | options


def refuse_empty(params: dict[str, object], of_duty: type[DutyParams]) -> None:
    """Raises BadInput for an empty list or name (`--users "$UNSET"`): it would mean all."""
    shapes = [param for param in param_shapes(of_duty) if param.name not in _COMMON]
    names = {param.name for param in shapes if param.kind == "array" or str in param.types}
    for name in params.keys() & names:
        value = params[name]
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and not any(str(text).strip(" ,") for text in texts):
            raise BadInput(
                f"--{name.replace('_', '-')}: it was given and names nothing; allowed is "
                "at least one name, or to leave it out for all"
            )
