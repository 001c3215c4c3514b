"""Templates and their filters. Text from outside passes `shortened`, then HTML escaping."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from mailslice.codec.shown import shortened
from mailslice.maintenance.health import Health, span
from mailslice.model.command_line import command_line

_HEAT = 9
_HEALTH_CLASSES = {
    Health.OK: "good",
    Health.HELD: "",
    Health.UNKNOWN: "",
    Health.LATE: "warn",
    Health.NO_WORKERS: "warn",
}
_STATUS_CLASSES = {
    "done": "good",
    "nothing to do": "good",
    "failed": "bad",
    "refused": "bad",
    "running": "warn",
}
_TABS = {Health.LATE: "domains", Health.NO_WORKERS: "workers", Health.STUCK: "workers"}
"""Health -> tab of its next step. Others: the history, which has the run buttons."""


class Renderer:
    """Renders the templates of the cockpit."""

    def __init__(self, dag_of: Callable[[str], str], now: Callable[[], datetime]) -> None:
        self._now = now
        self._environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "shortened": shortened,
            "ago": lambda at, now: span(now - at),
            "span": span,
            "moment": moment,
            "time": datetime.fromisoformat,
            "heat": heat,
            "dag": dag_of,
            "command_line": command_line,
            "health_class": lambda health: _HEALTH_CLASSES.get(health, "bad"),
            "status_class": lambda status: _STATUS_CLASSES.get(status, ""),
            "next_tab": lambda health: _TABS.get(health, "history"),
        }

    def use(self, **values: Any) -> None:
        """Sets values that every page has."""
        self._environment.globals |= values

    def __call__(self, template: str, **values: Any) -> HTMLResponse:
        values = {"now": self._now(), "view": "", **values}
        return HTMLResponse(self._environment.get_template(template).render(values))


def moment(at: datetime) -> str:
    """A time to read, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def heat(count: int, maximum: int) -> int:
    """0 for none, else 1 to 9 by the share of the maximum."""
    return 0 if not count else max(1, round(count / max(maximum, 1) * _HEAT))
