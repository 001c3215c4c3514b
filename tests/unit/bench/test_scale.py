"""docs/scale.md computes: each figure follows from a unit cost and an assumption."""

import json
from datetime import timedelta

from mailslice.bench.scale import (
    MAIL_BYTES,
    MAILS_A_DAY,
    PEAK_RATE,
    STORED_BLOBS,
    costs_of,
    executors,
    hours,
    processes,
    read_measured,
    scale_page,
)
from mailslice.duties.queue_size.advice import MAILS_A_SLICE
from mailslice.stores.cassandra.ids import IDS_A_REQUEST

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


def test_what_follows_from_the_assumptions_alone_is_on_the_page():
    page = scale_page(MEASURED)
    rows = rows_of(page)
    day, disk = 86_400, MAILS_A_DAY * 600 * 3
    assert f"At most {MAILS_A_SLICE:,} mails of the busiest slice in one partition." in page
    assert f"{PEAK_RATE:,.0f} mails/s over {MAILS_A_DAY / day:,.0f}" in page
    for window, seconds in (("10s", 10), ("1m", 60), ("5m", 300), ("1h", 3600)):
        buckets, slices = -(-int(PEAK_RATE * seconds) // MAILS_A_SLICE), day // seconds
        assert rows[window] == [f"{buckets:,}", f"{slices:,}", f"{slices * buckets:,}"]
    for count, names in {
        2 * MAILS_A_DAY: ["S3 PUT: header and body", "Cassandra: rows and marks written"],
        MAILS_A_DAY: ["Cassandra: deleted checks", "RabbitMQ: confirmed publishes"],
        2 * MAILS_A_DAY // 1000: ["S3 bulk deletes of up to 1000 keys, at least"],
        STORED_BLOBS // 1000 // 7: [
            "S3 list pages of a weekly blob_gc, a 1,000 keys, a day of seven"
        ],
        MAILS_A_DAY // IDS_A_REQUEST: [f"Cassandra: drops of marks, {IDS_A_REQUEST} a request"],
    }.items():
        for name in names:
            assert rows[name] == [f"{count:,}", f"{count / day:,.0f}"]
    for size, name in (
        (disk, "Cassandra: disk that a day's rows take until cleanup and reclaim"),
        (2 * MAILS_A_DAY * MAIL_BYTES, "S3: bytes in and out"),
    ):
        assert rows[name] == [f"{size / 2**30:,.0f} GiB", f"{size / 2**20 / day:,.1f} MiB"]


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
    rows = rows_of(scale_page(MEASURED))
    assert rows["enqueue"] == ["14", ""]  # 3,472 mails/s by 250
    assert rows["dequeue and complete"] == ["18", ""]
    assert rows["CPU of both"] == ["", "14"]
    duties = [cells for name, cells in rows.items() if name.startswith(("queue_cl", "blob_gc"))]
    assert duties[:3] == [
        ["100,000,000 dead rows", "1.7", "1", "240,000,000"],
        ["2,000,000,000 rows", "11.1", "3", "720,000,000"],
        ["2,000,000,000 keys", "55.6", "14", "140,000,000"],
    ]
    assert rows["counter_repair, weekly"] == ["1,000,000,000 messages", "6.9", "2", "570,000,000"]


def test_what_was_not_measured_is_not_guessed(tmp_path):
    page = scale_page(read_measured(tmp_path / "none.json"))
    assert "nothing was measured yet" in page
    rows = rows_of(page)
    assert rows["queue_cleanup, nightly: plan and apply"] == [
        "100,000,000 dead rows",
        "-",
        "-",
        "-",
    ]
    assert rows["enqueue"] == ["-", ""]


def test_a_run_of_make_bench_is_read_back(tmp_path):
    file = tmp_path / "performance.json"
    file.write_text(json.dumps(MEASURED))
    assert scale_page(read_measured(file)) == scale_page(MEASURED)
