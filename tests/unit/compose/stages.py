"""The stages of a Dockerfile, as far as ours goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage: what it begins with, and its instructions, each on one line."""

    base: str
    lines: tuple[str, ...]


def stages(text: str) -> dict[str, Stage]:
    """The stages by name, in their order."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", text))
    by_name: dict[str, Stage] = {}
    for part in re.split(r"(?m)^FROM ", joined)[1:]:
        head, *lines = (line for line in part.splitlines() if line.strip())
        base, _, name = head.partition(" AS ")
        by_name[name] = Stage(base, tuple(lines))
    return by_name


def bases(known: Mapping[str, Stage], name: str) -> list[str]:
    """The stages that a stage is built on, itself first, and the image below them."""
    chain = [name]
    while chain[-1] in known:
        chain.append(known[chain[-1]].base)
    return chain
