"""What killed enqueues and completions leave is found: lost mails by queue_audit, orphan blobs by
blob_gc, both exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from mailslice.duties.queue_audit import evidence
from mailslice.engine import worker_stores
from mailslice.maintenance.artifacts import artifacts
from mailslice.maintenance.audits import newest_audit
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest, new_run
from mailslice.model.clock import system_clock
from mailslice.model.mail import QueueName
from mailslice.stores import open_stores
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.testing.faults.matrix import LaneResult, World, kills
from tests.services.duties.world import run_all_in_process
from tests.services.faults.lanes import Lane, run_lanes

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
OPERATIONS = ("enqueue", "complete", "drop")


def later(hours: float) -> Any:
    def now() -> datetime:
        return system_clock() + timedelta(hours=hours)

    return now


@pytest.fixture
def alone(make_fresh: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Stores of its own, as blob_gc scans a whole bucket; no Spark; clocks that are ahead."""
    monkeypatch.setattr(S3BlobStore, "now_skew", lambda *_: timedelta(0))
    monkeypatch.setattr(CassandraSession, "longest_statement", timedelta(0))
    monkeypatch.setattr(CassandraSession, "skew_of", lambda *_: timedelta(0))
    monkeypatch.setattr(evidence, "HOLD", timedelta(seconds=5.5))
    absent = "enqueuedMailsV3,messageV3,attachmentV2,mailRepositoryContentV2"
    fresh = make_fresh().but(MAILSLICE_QUEUE_SHARED="false", MAILSLICE_GC_ABSENT_SOURCES=absent)
    with open_stores(fresh.settings) as stores:
        yield World(stores, fresh.env)
    worker_stores.close_all()


def test_what_kills_leave_is_found_by_the_duties(alone: World) -> None:
    outcomes: dict[str, LaneResult] = run_lanes(
        alone, {name: Lane(name, partial(kills, limit=4)) for name in OPERATIONS}, 3
    )
    settings, stores = alone.stores.settings, alone.stores
    assert {
        name: outcome.books.wrong for name, outcome in outcomes.items() if outcome.books.wrong
    } == {}
    for name, outcome in outcomes.items():
        assert outcome.end is not None
        report = run_all_in_process(
            RunRequest(
                "queue_audit",
                QueueName(name),
                new_run(system_clock),
                who="test",
                params={"census": True, "older_than": "10m"},
            ),
            settings,
            clock=later(1),
        )
        assert report["status"] == "done", report
        found = {
            UUID(mail.enqueue_id)
            for mail in newest_audit(stores, QueueName(name)).mails(artifacts(settings))
            if mail.verdict == "lost"
        }
        assert found == outcome.books.lost(outcome.end), report["verdicts"]
    keys = {blob.key for blob in stores.blobs.list()}
    ends = [outcome.end for outcome in outcomes.values() if outcome.end is not None]
    referred = {
        key
        for end in ends
        for row in end.rows.values()
        for key in (row.item.header_blob_id, row.item.body_blob_id)
    }
    assert keys - referred
    params = {"grace": "10m", "delete_after": "1h", "max_share": 1}
    for hours in (1, 3):
        report = run_all_in_process(
            RunRequest("blob_gc", NO_QUEUE, new_run(system_clock), who="test", params=params),
            settings,
            clock=later(hours),
        )
        assert report["status"] == "done", report
    assert {blob.key for blob in stores.blobs.list()} == keys & referred
