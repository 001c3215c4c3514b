"""Parses the stages of a Dockerfile, with the features that ours uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage: its base, and its instructions, each on one line."""

    base: str
    lines: tuple[str, ...]


def stages(text: str) -> dict[str, Stage]:
    """Name -> stage, in the order of the file."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", text))
    by_name: dict[str, Stage] = {}
    for part in re.split(r"(?m)^FROM ", joined)[1:]:
        head, *lines = (line for line in part.splitlines() if line.strip())
        base, _, name = head.partition(" AS ")
        by_name[name] = Stage(base, tuple(lines))
    return by_name


def bases(known: Mapping[str, Stage], name: str) -> list[str]:
    """The chain of a stage: the stage itself, the stages below it, and the image at the end."""
    chain = [name]
    while chain[-1] in known:
        chain.append(known[chain[-1]].base)
    return chain
