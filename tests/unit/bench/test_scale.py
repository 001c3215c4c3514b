"""docs/scale.md computes: each figure follows from a unit cost and an assumption."""

import json
from datetime import timedelta

import pytest

from mailslice.bench.scale import (
    Deployment,
    buckets,
    costs_of,
    executors,
    hours,
    processes,
    read_measured,
    scale_page,
)

HOT = {
    "bench": "hotpath",
    "enqueue_rate": 500.0,
    "dequeue_rate": 400.0,
    "cpu_seconds_per_1000": 2.0,
}
MEASURED = {
    "date": "2026-11-21",
    "machine": "2 cores",
    "rows": [
        {**HOT, "size": 4096},
        {
            **HOT,
            "size": 51200,
            "enqueue_rate": 250.0,
            "dequeue_rate": 200.0,
            "cpu_seconds_per_1000": 4.0,
        },
        {"bench": "view", "dead": 0},
        {
            "bench": "view",
            "dead": 1000,
            "cleanup": {"plan_rows_per_second": 1.0, "apply_rows_per_second": 1.0},
        },
        {
            "bench": "view",
            "dead": 1_000_000,
            "cleanup": {"plan_rows_per_second": 50_000.0, "apply_rows_per_second": 25_000.0},
        },
        {
            "bench": "blob_gc",
            "blobs": 200_000,
            "references_per_second": 50_000.0,
            "listed_blobs_per_second": 10_000.0,
            "deleted_keys_per_second": 5000.0,
        },
        {"bench": "counters", "messages": 1_000_000, "plan_again_messages_per_second": 40_000.0},
    ],
}
SMALL = Deployment(
    mails_a_day=86_400_000,
    peak=2.0,
    stored_blobs=720_000_000,
    messages=288_000_000,
    night=timedelta(hours=1),
)


def rows_of(page):
    return {
        cells[0]: cells[1:]
        for line in page.splitlines()
        if line.startswith("| ")
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }


def test_costs_are_those_of_the_nearest_size_and_the_largest_run():
    costs = costs_of(MEASURED["rows"], 50 * 1024)
    assert (costs["enqueue_rate"], costs["dequeue_rate"]) == (250.0, 200.0)
    assert costs["cpu_seconds_per_1000"] == 4.0
    names = "plan_rows", "apply_rows", "references", "listed_blobs", "deleted_keys"
    assert [costs[f"{name}_per_second"] for name in (*names, "plan_again_messages")] == [
        50_000.0,
        25_000.0,
        50_000.0,
        10_000.0,
        5000.0,
        40_000.0,
    ]
    assert costs_of(MEASURED["rows"], 4000)["enqueue_rate"] == 500.0


@pytest.mark.parametrize(
    ("window", "count"),
    [
        (timedelta(seconds=1), 1),
        (timedelta(seconds=5), 1),
        (timedelta(seconds=6), 2),
        (timedelta(hours=1), 720),
    ],
)
def test_buckets_hold_the_busiest_slice(window, count):
    assert buckets(SMALL, window) == count


def test_processes_hours_and_executors():
    assert (
        processes(2000, 250.0),
        processes(2001, 250.0),
        processes(1, 1000.0),
        processes(5, None),
    ) == (8, 9, 1, None)
    assert (hours(7200, 1.0), hours(1, None)) == (2.0, None)
    assert executors(7200, [1.0, 1.0], timedelta(hours=1)) == 4
    assert executors(1, [1.0], timedelta(hours=1)) == 1
    assert executors(1, [1.0, None], timedelta(hours=1)) is None


def test_the_page_follows_from_costs_and_assumptions():
    rows = rows_of(scale_page(MEASURED, SMALL))
    assert rows["enqueue"] == ["8", ""]  # 2,000 mails/s by 250
    assert rows["dequeue and complete"] == ["10", ""]
    assert rows["CPU of both"] == ["", "8"]
    assert rows["1m"] == ["12", "1,440", "17,280"]
    assert rows["S3 PUT: header and body"] == ["172,800,000", "2,000"]
    assert rows["queue_cleanup, nightly: plan and apply"] == ["86,400,000 dead rows", "1.4", "2"]
    assert rows["blob_gc, weekly: scan of references"] == ["720,000,000 rows", "4.0", "4"]
    assert rows["blob_gc, weekly: listing"] == ["720,000,000 keys", "20.0", "20"]
    assert rows["counter_repair, weekly"] == ["288,000,000 messages", "2.0", "2"]


def test_what_was_not_measured_is_not_guessed(tmp_path):
    page = scale_page(read_measured(tmp_path / "none.json"))
    assert "nothing was measured yet" in page
    rows = rows_of(page)
    assert rows["queue_cleanup, nightly: plan and apply"] == ["100,000,000 dead rows", "-", "-"]
    assert rows["enqueue"] == ["-", ""]


def test_a_run_of_make_bench_is_read_back(tmp_path):
    file = tmp_path / "performance.json"
    file.write_text(json.dumps(MEASURED))
    assert scale_page(read_measured(file)) == scale_page(MEASURED)
