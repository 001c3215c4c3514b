"""How a function becomes a command: every command takes --json and --debug, before its name or after it, and gets an `Output` first."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mailslice.cli.arguments import check_text
from mailslice.cli.output import Output

Json = Annotated[
    bool, typer.Option("--json", help="One JSON object a line, and nothing else on stdout.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and logs.")]

_JSON = "mailslice.json"
"""Where in the command's context --json is kept that was given before the command's name."""


def group(help_text: str) -> typer.Typer:
    """A group of commands."""
    app = typer.Typer(
        help=help_text, no_args_is_help=True, add_completion=False, rich_markup_mode=None
    )

    @app.callback()
    def _before(ctx: typer.Context, as_json: Json = False, debug: Debug = False) -> None:  # noqa: ARG001
        remember(ctx, as_json=as_json)

    return app


def remember(ctx: typer.Context, *, as_json: bool) -> None:
    """Keep a --json that comes before the command's name."""
    ctx.meta[_JSON] = as_json or ctx.meta.get(_JSON, False)


def command(
    app: typer.Typer, name: str, cls: type[TyperCommand] = TyperCommand
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register `function(out, ...)` as the command `name` of `app`. `--debug` is acted on by `main`, which sees every command end."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        out, *own = signature.parameters.values()
        if out.name != "out":
            raise TypeError(f"{function.__qualname__}: the first parameter of a command is out")
        wants_context = "ctx" in signature.parameters
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own
            if parameter.name != "ctx"
        ]
        own.insert(
            0, inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        )
        more = [
            inspect.Parameter(
                word, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation
            )
            for word, annotation in (("as_json", Json), ("debug", Debug))
        ]

        def run(*, ctx: typer.Context, as_json: bool, debug: bool, **given: Any) -> None:  # noqa: ARG001
            remember(ctx, as_json=as_json)
            for word, value in given.items():
                if word != "paths":  # a file may have any name
                    check_text(word.replace("_", " "), value)
            function(Output(ctx.meta[_JSON]), **({"ctx": ctx, **given} if wants_context else given))

        run.__name__, run.__qualname__, run.__module__, run.__doc__ = (
            function.__name__,
            function.__qualname__,
            function.__module__,
            function.__doc__,
        )
        run.__annotations__ = {
            parameter.name: parameter.annotation for parameter in (*own, *more)
        } | {"return": None}
        run.__signature__ = inspect.Signature([*own, *more], return_annotation=None)  # type: ignore[attr-defined]
        app.command(name, cls=cls)(run)
        return function

    return register
