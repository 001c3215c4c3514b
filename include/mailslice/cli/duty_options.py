"""Options of `mailslice duty STEP DUTY`, one a param: `--older-than` is the param older_than."""

import inspect
import typing
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mailslice.cli.arguments import check_text
from mailslice.cli.examples import ExampleCommand
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadInput

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_PARAMS_KEY = "mailslice.maintenance.params"
"""Where in the command's context the given params are."""
_COMMON = {"reason", "dry_run"}
"""Options of every duty, which the commands declare themselves."""
_WITH_VALUE = {"--queue", "--reason", "--param", "--run"}
_SWITCHES = {"--dry-run", "--json", "--debug", "--help"}


class DutyCommand(ExampleCommand):
    """A command with the options of the duty that its arguments name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse with the duty's options. An unknown duty is reported before its options."""
        from mailslice.maintenance import registry

        name = duty_in(args, registry.names())
        own = [*self.params]
        try:
            if name is None:
                if (word := _first_word(args)) is not None:
                    registry.load(word)
            else:
                self.params = [*own, *options_of(registry.load(name).params.model_fields)]
            return super().parse_args(ctx, args)
        finally:
            # --help is printed while parsing; the next command line may name another duty.
            self.params = own


def duty_in(args: Sequence[str], known: Sequence[str]) -> str | None:
    """The duty that a command line names: the first word that is one and no option's value."""
    pairs = zip(args, ["", *args], strict=False)
    words = (word for word, previous in pairs if previous not in _WITH_VALUE)
    return next((word for word in words if word in known), None)


def _first_word(args: Sequence[str]) -> str | None:
    """The word meant as a duty, where none is known; a word after an option is likely its value."""
    words = [
        (word, previous)
        for word, previous in zip(args, ["", *args], strict=False)
        if not word.startswith("-") and previous not in _WITH_VALUE
    ]

    def is_no_value(previous: str) -> bool:
        return not previous.startswith("-") or "=" in previous or previous in _SWITCHES

    words.sort(key=lambda pair: not is_no_value(pair[1]))
    return words[0][0] if words else None


def options_of(fields: "dict[str, FieldInfo]") -> list[Any]:
    """One option a param. Values stay text: the duty's params check them."""

    def carrier(**_: Any) -> None:
        """Only its signature is used."""

    own = [_option(name, info) for name, info in fields.items() if name not in _COMMON]
    carrier.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    carrier.__annotations__ = {option.name: option.annotation for option in own}
    app = typer.Typer(add_completion=False)
    app.command()(carrier)
    return list(typer.main.get_command(app).params)


def _option(name: str, info: "FieldInfo") -> inspect.Parameter:
    word = name.replace("_", "-")
    shared: dict[str, Any] = {
        "help": info.description,
        "expose_value": False,
        "callback": _store_param,
    }
    kind: Any
    if is_switch(info.annotation):
        kind = Annotated[bool | None, typer.Option(f"--{word}/--no-{word}", **shared)]
    else:
        many = is_list(info.annotation)
        default = None if info.default is None or many else str(_shown(info.default))
        option = typer.Option(
            f"--{word}", metavar=_metavar(info), show_default=default or False, **shared
        )
        kind = Annotated[list[str] | None, option] if many else Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _store_param(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    if value is not None and value != [] and param.name is not None:
        words = value
        if isinstance(value, list | tuple):
            words = [word.strip() for text in value for word in text.split(",") if word.strip()]
        check_text(f"--{param.name.replace('_', '-')}", words)
        ctx.meta.setdefault(_PARAMS_KEY, {})[param.name] = words
    return value


def params_of_options(ctx: Any) -> dict[str, object]:
    """The params that this command line gave as options, as text, switches and lists of text."""
    return dict(ctx.meta.get(_PARAMS_KEY, {}))


def refuse_duplicates(options: dict[str, object], params: dict[str, object]) -> None:
    """BadInput when the same param was given as option and by --param."""
    for name in options.keys() & params.keys():
        raise BadInput(
            f"--param {name}: it was given as --{name.replace('_', '-')}, too; allowed is "
            "one of them"
        )


def refuse_empty(params: dict[str, object], fields: "dict[str, FieldInfo]") -> None:
    """BadInput for a list that names nothing (`--users "$UNSET"`): it would mean all."""
    for name, value in params.items():
        texts = [value] if isinstance(value, str) else value
        if name not in fields or not is_list(fields[name].annotation):
            continue
        if isinstance(texts, list) and not any(str(text).strip(" ,") for text in texts):
            raise BadInput(
                f"--{name.replace('_', '-')}: it was given and names nothing; allowed is "
                "at least one name, or to leave it out for all"
            )


def is_switch(annotation: Any) -> bool:
    """Whether a param of this type is on or off."""
    from mailslice.maintenance.params import kinds

    return bool in kinds(annotation)


def is_list(annotation: Any) -> bool:
    """Whether a param of this type holds several values."""
    from mailslice.maintenance.params import kinds

    lists = (list, tuple, set, frozenset)
    return any(typing.get_origin(kind) in lists for kind in kinds(annotation))


def _metavar(info: "FieldInfo") -> str:
    from mailslice.maintenance.params import kinds

    allowed = kinds(info.annotation)
    names = {timedelta: "DURATION", datetime: "TIME", int: "N", float: "NUMBER"}
    return next((text for kind, text in names.items() if kind in allowed), "TEXT")


def _shown(value: Any) -> Any:
    return format_duration(value) if isinstance(value, timedelta) else value
