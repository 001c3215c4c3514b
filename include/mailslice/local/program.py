"""What supervisor runs: one record a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """One service. `ports` names the settings of the ports it listens on; `healthy` answers None or why it is not yet up."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    healthy: Callable[[], str | None]
    ports: tuple[str, ...] = ()
    stop_seconds: int = 30
    priority: int = 999
