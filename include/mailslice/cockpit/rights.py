"""Who may see what: one right a route, checked by what serves the page (Airflow's auth manager)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any


class Right(StrEnum):
    """What a person may do, each more than the one before."""

    LOOK = "look"
    """Figures, queues, mails' envelopes, reports. Airflow: viewer."""
    PREVIEW = "preview"
    """What an act would change, dry runs, exports. Airflow: user."""
    ACT = "act"
    """Runs that change something. Airflow: op."""
    CONTENT = "content"
    """What is written in a mail. Airflow: admin."""


Guards = Mapping[Right, Callable[..., Any]]
"""A FastAPI dependency for each right, which raises HTTPException for those who have it not."""
Rights = Callable[..., frozenset[Right]]
"""A FastAPI dependency that gives all rights of who asks: pages show no button beyond them."""


def every_right() -> frozenset[Right]:
    """Of a page whose visitors may do all."""
    return frozenset(Right)
