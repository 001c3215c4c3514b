"""The meaning of each setting, for docs/settings.md."""

import ast
import inspect
from itertools import pairwise

from mailslice.model.setting_types import Group


def meanings(group: type[Group]) -> dict[str, str]:
    """Field -> its docstring, read from the source."""
    (tree,) = ast.parse(inspect.getsource(group)).body
    return {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in pairwise(getattr(tree, "body", ()))
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }
