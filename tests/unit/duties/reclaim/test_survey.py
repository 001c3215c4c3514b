"""What waits to come back, by the reports of earlier runs."""

from datetime import UTC, datetime, timedelta

import pytest

from mailslice.duties.reclaim.survey import (
    MARK_BYTES,
    deleted_bytes,
    deleted_since,
    reclaimed_at,
    to_mib,
    why_due,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def cleanup(hours_ago=1, planned=10, applied=10, size=1000, dropped=0, **more):
    finished = (NOW - timedelta(hours=hours_ago)).isoformat()
    return {
        "planned": planned,
        "applied": applied,
        "bytes": size,
        "marks": {"dropped": dropped},
        "finished": finished,
        **more,
    }


def test_what_was_deleted_since_counts_and_what_was_before_does_not():
    reports = [cleanup(1, size=500), cleanup(3, size=70), cleanup(48, size=9)]
    assert deleted_bytes(reports, NOW - timedelta(hours=2)) == 500
    assert deleted_bytes(reports, None) == 579


def test_every_cleanup_of_many_queues_since_a_node_was_reclaimed_counts():
    by_queue = ([cleanup(24 * day, size=1) for day in range(5)] for _ in range(300))
    since = {"a": NOW - timedelta(hours=60), "b": NOW - timedelta(hours=30), "new": None}
    assert deleted_since(by_queue, since) == {"a": 3 * 300, "b": 2 * 300, "new": 5 * 300}
    assert deleted_since([], since)["a"] == 0


def test_only_what_was_applied_counts():
    assert deleted_bytes([cleanup(planned=10, applied=4)], None) == 400
    assert deleted_bytes([cleanup(planned=0, applied=0, size=0)], None) == 0


def test_dropped_marks_count_too():
    assert deleted_bytes([cleanup(planned=0, applied=0, size=0, dropped=3)], None) == 3 * MARK_BYTES


@pytest.mark.parametrize(("days_ago", "size"), [(0, 7), (1, 7), (3, 0)])
def test_a_run_that_was_killed_has_no_end_and_counts_for_two_days(days_ago, size):
    killed = cleanup(finished=None, size=7, started=(NOW - timedelta(days=days_ago)).isoformat())
    assert deleted_bytes([killed], NOW) == size
    assert deleted_bytes([killed], None) == 7


def test_reports_of_other_versions_lack_fields():
    assert (
        deleted_bytes(
            [{"finished": None}, {"finished": None, "marks": None, "planned": None, "bytes": None}],
            None,
        )
        == 0
    )


def test_each_node_has_its_own_last_time():
    runs = [
        {
            "nodes": [
                {"node": "a", "reclaimedAt": "2026-11-20T00:00:00Z"},
                {"node": "b", "reclaimedAt": None},
            ]
        },
        {
            "nodes": [
                {"node": "a", "reclaimedAt": "2026-11-13T00:00:00Z"},
                {"node": "b", "reclaimedAt": "2026-11-12T00:00:00Z"},
            ]
        },
        {"nodes": None},
        {},
    ]
    assert reclaimed_at(runs) == {
        "a": datetime(2026, 11, 20, tzinfo=UTC),
        "b": datetime(2026, 11, 12, tzinfo=UTC),
    }


@pytest.mark.parametrize(
    ("mib", "waits", "last", "force", "begins"),
    [
        (5, 0, None, False, "never reclaimed"),
        (0, 0, None, False, None),
        (0, 1, None, False, "about 1 MiB were deleted"),
        (5, 0, NOW - timedelta(days=7), False, None),
        (5, 0, NOW - timedelta(days=11), False, "last reclaimed 2026-11-10"),
        (0, 0, NOW - timedelta(days=11), False, None),
        (5, 3_000_000, NOW, False, "about 3 MiB were deleted"),
        (0, 0, NOW, True, "asked for"),
    ],
)
def test_when_a_node_is_due(mib, waits, last, force, begins):
    why = why_due(mib, waits, last, NOW, force=force)
    assert (why is None) if begins is None else why.startswith(begins)


def test_mib_are_rounded_up():
    assert [to_mib(count) for count in (0, 1, 2**20, 2**20 + 1)] == [0, 1, 1, 2]
