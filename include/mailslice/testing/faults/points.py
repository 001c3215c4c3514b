"""Which crash points there are: those that the code names. No second list that could fall behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import mailslice

_PACKAGE = Path(mailslice.__file__).parent
HOT_PATH = ("worker", "admin", "view", "stores", "testing")
"""The rooms whose points the matrix of operations reaches, the kit's own handlers among them. Those of the duties are reached by the tests of each duty."""


def named(rooms: Iterable[str] = HOT_PATH) -> set[str]:
    """The names that `crash.point("...")` is called with in these rooms of the package."""
    files = (file for room in rooms for file in sorted((_PACKAGE / room).rglob("*.py")))
    return {name for file in files for name in _names(ast.parse(file.read_text(), str(file)))}


def _names(tree: ast.AST) -> Iterable[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="crash"), attr="point"),
                args=[ast.Constant(value=str(name))],
            ):
                yield name
