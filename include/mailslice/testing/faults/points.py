"""The registry of crash points, read from the code, so that no second list can become outdated."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import mailslice

_PACKAGE = Path(mailslice.__file__).parent
HOT_PATH = ("worker", "admin", "view", "stores", "testing")
"""Packages whose points the matrix of operations reaches, including the kit's own handlers.

The tests of each duty reach the points of that duty.
"""


def named(packages: Iterable[str] = HOT_PATH) -> set[str]:
    """The names that `crash.point("...")` is called with in these packages of mailslice."""
    files = (file for package in packages for file in sorted((_PACKAGE / package).rglob("*.py")))
    return {name for file in files for name in _names(ast.parse(file.read_text(), str(file)))}


def _names(tree: ast.AST) -> Iterable[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="crash"), attr="point"),
                args=[ast.Constant(value=str(name))],
            ):
                yield name
