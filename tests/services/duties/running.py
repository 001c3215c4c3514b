"""What tests of duties share: steps in this process, without what costs seconds; a step that is killed; a lock that runs out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from mailslice.checks import gate
from mailslice.checks.gate import Expectation, Finding, Frame, GateResult
from mailslice.engine.frames import InProcess
from mailslice.maintenance.context import StepContext
from mailslice.maintenance.run_request import RunRequest
from mailslice.model import crash
from mailslice.model.settings import Settings, clone_root
from mailslice.stores import Stores


def without_docs(patch: pytest.MonkeyPatch) -> None:
    """Gates judge, and render no page."""
    patch.setattr(gate, "_publish", lambda *_: "not rendered")


def without_spark(patch: pytest.MonkeyPatch) -> None:
    """What Spark's workers do is done in this process."""
    patch.setattr(StepContext, "spark", lambda _: InProcess())


def judged_plainly(name: str, frames: Sequence[Frame], docs: object, *_: object) -> GateResult:
    """What Great Expectations would find, in a thousandth of its time; the gates' own tests and whole processes have the real one."""
    return GateResult(name, tuple(one for frame in frames for one in _findings(frame)), "no pages")


def _findings(frame: Frame) -> Iterator[Finding]:
    rows = _rows(frame)
    if not rows and not frame.may_be_empty:
        yield Finding(frame.name, "There are rows to judge.", False, "rows", "0", 0, 0)
    for rule in frame.rules() if rows else ():
        values = [tuple(row[column] for column in rule.columns) for row in rows]
        if rule.kind == "ExpectTableRowCountToEqual":
            values = [(len(rows),)]
        unique = "Unique" in rule.kind
        broken = [
            each
            for each in values
            if (values.count(each) > 1 if unique else not _holds(rule, *each))
        ]
        column = ", ".join(rule.columns) or "rows"
        observed = ", ".join(map(str, (broken or values)[0]))
        if broken or rule in frame.expectations:
            yield Finding(
                frame.name, rule.sentence, not broken, column, observed, len(rows), len(broken)
            )


def _rows(frame: Frame) -> list[dict[str, Any]]:
    if isinstance(frame.rows, Sequence):
        return [dict(row) for row in frame.rows]
    if hasattr(frame.rows, "num_rows"):
        return frame.rows.to_pylist()
    return [row.asDict() for row in frame.rows.collect()]


def _holds(rule: Expectation, value: Any, other: Any = None) -> bool:
    if value is None:
        return False
    if rule.kind == "ExpectColumnValuesToBeBetween":
        low, high = rule.arguments["min_value"], rule.arguments["max_value"]
        return (low is None or value >= low) and (high is None or value <= high)
    if rule.kind == "ExpectColumnPairValuesToBeEqual":
        return bool(value == other)
    if rule.kind == "ExpectColumnValuesToBeInSet":
        return value in rule.arguments["value_set"]
    if rule.kind == "ExpectColumnValuesToNotBeNull":
        return True
    if rule.kind == "ExpectTableRowCountToEqual":
        return bool(value == rule.arguments["value"])
    raise NotImplementedError(rule.kind)


def environment(settings: Settings) -> dict[str, str]:
    """This machine's, with MAILSLICE_* for a process of its own that works on the same stores."""
    own = {
        "MAILSLICE_CASSANDRA_CONTACT_POINTS": settings.cassandra.contact_points[0],
        "MAILSLICE_CASSANDRA_PORT": str(settings.cassandra.port),
        "MAILSLICE_CASSANDRA_KEYSPACE": settings.cassandra.keyspace,
        "MAILSLICE_OWN_KEYSPACE": settings.own.keyspace,
        "MAILSLICE_OWN_BUCKET": settings.own.bucket,
        "MAILSLICE_RABBITMQ_URL": settings.rabbitmq.url.get_secret_value(),
        "MAILSLICE_RABBITMQ_MANAGEMENT_URL": settings.rabbitmq.management_url.get_secret_value(),
        "MAILSLICE_S3_ENDPOINT": settings.s3.endpoint,
        "MAILSLICE_S3_BUCKET": settings.s3.bucket,
        "MAILSLICE_S3_ACCESS_KEY": settings.s3.access_key or "",
        "MAILSLICE_S3_SECRET_KEY": settings.s3.secret_key.get_secret_value()
        if settings.s3.secret_key
        else "",
        "MAILSLICE_S3_REGION": settings.s3.region,
        "MAILSLICE_ARTIFACTS": settings.duty.artifacts,
        "MAILSLICE_QUEUE_SLICE_WINDOW": f"{settings.queue.slice_window.total_seconds():.0f}s",
        "MAILSLICE_QUEUE_SHARED": str(settings.queue.shared).lower(),
        "MAILSLICE_QUEUE_BUCKET_COUNT": str(settings.queue.bucket_count),
    }
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("MAILSLICE_")},
        **own,
    }


def kill(step: str, request: RunRequest, environ: Mapping[str, str], point: str) -> None:
    """The step, in a process that dies at `point`."""
    arguments = [request.duty, step, request.queue, request.run, json.dumps(dict(request.params))]
    command = [sys.executable, "-m", "tests.services.duties.killed_step", *arguments]
    given = {**environ, crash.VARIABLE: point}
    done = subprocess.run(
        command,
        env=given,
        cwd=clone_root(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def let_run_out(stores: Stores, *locks: str) -> None:
    """What 60 s would do to the locks of a process that was killed."""
    for name in locks:
        if (holder := stores.own.locks.holder(name)) is not None:
            stores.own.locks.release(name, holder)
