"""Commands: each takes --json and --debug, before or after its name, and an `Output` first."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from mailslice.cli.arguments import check_text, option
from mailslice.cli.examples import ExampleCommand
from mailslice.cli.output import Output
from mailslice.model.errors import BadInput
from mailslice.model.settings import load_settings

Json = Annotated[bool, option("--json", "One JSON object a line, and nothing else on stdout.")]
Debug = Annotated[bool, option("--debug", "Show the traceback of an error, and logs.")]

_DUTIES = "duty"
_JSON = "mailslice.json"
"""Key in the command's context of a --json that was given before the command's name."""


def group(help_text: str) -> typer.Typer:
    app = typer.Typer(
        help=help_text, no_args_is_help=True, add_completion=False, rich_markup_mode=None
    )

    @app.callback()
    def _before(
        ctx: typer.Context,
        as_json: Json = False,
        debug: Debug = False,  # noqa: ARG001
    ) -> None:
        remember(ctx, as_json=as_json)

    return app


def remember(ctx: typer.Context, *, as_json: bool) -> None:
    """Keep a --json that comes before the command's name."""
    ctx.meta[_JSON] = as_json or ctx.meta.get(_JSON, False)


def _check_reason(path: str, reason: str | None) -> None:
    """Raises BadInput when the settings require a reason and none is given.

    Duties are exempt: schedules start them, and Airflow records them. Their guards may need one.
    """
    if (reason or "").strip() or path.split()[1:2] == [_DUTIES]:
        return
    if load_settings().admin.reason_required:
        raise BadInput(
            f"{' '.join(path.split()[1:])}: give --reason TEXT: why this is done "
            "(MAILSLICE_ADMIN_REASON_REQUIRED=true)"
        )


def command(
    app: typer.Typer, name: str, cls: type[TyperCommand] = ExampleCommand
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register `function(out, ...)` as the command `name` of `app`; `main` acts on --debug.

    A parameter whose type is a dataclass becomes one option for each field.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter("as_json", keyword, default=False, annotation=Json),
        inspect.Parameter("debug", keyword, default=False, annotation=Debug),
    ]

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        own = dict(signature.parameters)
        if next(iter(own)) != "out":
            raise TypeError(f"{function.__qualname__}: the first parameter of a command is out")
        del own["out"]
        takes_context = own.pop("ctx", None) is not None
        parameters = [
            inspect.Parameter("ctx", keyword, annotation=typer.Context),
            *(parameter.replace(kind=keyword) for parameter in _expanded(own.values())),
            *shared,
        ]

        @wraps(function)
        def run(*, ctx: typer.Context, as_json: bool, **values: Any) -> None:
            del values["debug"]  # `main` acts on it
            remember(ctx, as_json=as_json)
            for word, value in values.items():
                if word not in {"paths", "log", "words"}:  # a file may have any name
                    check_text(word.replace("_", " "), value)
            only_shows = values.get("dry_run") or values.get("value", "") is None
            if "reason" in values and not only_shows:
                _check_reason(ctx.command_path, values["reason"])
            for parameter in own.values():
                kind = parameter.annotation
                if isinstance(kind, type) and is_dataclass(kind):
                    options = {field.name: values.pop(field.name) for field in fields(kind)}
                    values[parameter.name] = kind(**options)
            context = {"ctx": ctx} if takes_context else {}
            function(Output(ctx.meta[_JSON]), **context, **values)

        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(name, cls=cls)(run)
        return function

    return register


def _expanded(parameters: Iterable[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    for parameter in parameters:
        if is_dataclass(parameter.annotation):
            types = get_type_hints(parameter.annotation, include_extras=True)
            for field in fields(parameter.annotation):
                yield inspect.Parameter(
                    field.name, parameter.kind, default=field.default, annotation=types[field.name]
                )
        else:
            yield parameter
