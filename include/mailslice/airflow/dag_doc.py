"""The text of a DAG: its file's docstring, and its params as the duty's model describes them."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from textwrap import fill
from typing import Any

from mailslice.airflow.run_request import APPROVE, DRY_RUN, QUEUES
from mailslice.maintenance.registry import load
from mailslice.model.durations import format_duration

OF_THE_DAG = {
    QUEUES: "one name a line; none = every queue that RabbitMQ knows",
    APPROVE: "ask a person before apply, who sees the plan; no answer is no",
}
"""Params that no duty has."""
GIVEN_BY_AIRFLOW = {"slices_from", "slices_before", "time_limit"}
"""What Airflow itself tells the duty: the data interval of a backfill, and the time-out."""


def dag_doc(duty: str, text: str, *, reads_only: bool) -> str:
    """Markdown: `text`, with the params before its example."""
    before, example, after = text.strip().partition("**Example**")
    return f"{before}{params_text(duty, reads_only=reads_only)}\n\n{example}{after}"


def params_text(duty: str, *, reads_only: bool) -> str:
    """One line a param of the trigger form, with its default."""
    lines = [
        _wrapped(f"- `{name}` (`{default}`): {meaning}", "  ")
        for name, default, meaning in _params(duty, reads_only)
    ]
    given = "Airflow itself gives `time_limit`, from the time-out of a task"
    if "slices_from" in load(duty).params.model_fields:
        given += ", and `slices_from` and `slices_before`, from the data interval of a backfill"
    head = "**Params.** In brackets: what a run by hand gets where the form or `--conf` is silent."
    return "\n".join([head, "", *lines, "", _wrapped(f"{given}.")])


def _params(duty: str, reads_only: bool) -> list[tuple[str, str, str]]:
    entry = load(duty)
    rows = [(QUEUES, "all", OF_THE_DAG[QUEUES])] if entry.needs_queue else []
    for name, info in entry.params.model_fields.items():
        if name in GIVEN_BY_AIRFLOW:
            continue
        default = info.get_default(call_default_factory=True)
        rows.append((name, _shown(default), info.description or ""))
        if name == DRY_RUN and not reads_only:
            rows[-1] = (name, "true", f"{info.description}; scheduled runs are not dry")
            rows.append((APPROVE, "false", OF_THE_DAG[APPROVE]))
    return rows


def _wrapped(text: str, indent: str = "") -> str:
    return fill(
        " ".join(text.split()),
        100,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _shown(default: Any) -> str:
    if isinstance(default, timedelta):
        return format_duration(default)
    if isinstance(default, Enum):
        return str(default.value)
    if default in (None, (), frozenset()):
        return "unset"
    return str(default).lower() if isinstance(default, bool) else str(default)
