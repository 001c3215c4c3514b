"""docs/performance.md: a table a section, whose columns are fields of the JSON."""

import json
from pathlib import Path

import pytest

from mailslice.bench.commands import BENCH_PARTS, parts
from mailslice.bench.page import TABLES, page_text, table, write_page
from mailslice.bench.suite import parts_of, run_all
from mailslice.cli.output import Output
from mailslice.model.errors import BadInput, StoreUnavailable
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings, clone_root

MEASURED = json.loads((clone_root() / "docs" / "performance.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("part", TABLES, ids=lambda part: f"{part.bench}-{part.columns[:40]}")
def test_each_column_is_a_field_of_what_was_measured(part):
    rows = part.rows(MEASURED["rows"])
    if not rows:
        pytest.skip("docs/performance.json has no such rows yet")
    _, _, *lines = table(part.columns.split(), rows)
    cells = zip(*(line.strip("| ").split(" | ") for line in lines), strict=True)
    optional = {
        *("rtt_ms", "deleted_share_of_limit", "before.cpu.size", "before.cpu.browse"),
        *("applied_keys_per_second", "apply_cpu", "plan_cpu", "plan_again_cpu"),
        *("spark_start_seconds", "plan_after_start_messages_per_second"),
    }
    empty = [
        name
        for name, column in zip(part.columns.split(), cells, strict=True)
        if set(column) == {"-"} and name not in optional
    ]
    assert empty == []


def test_figures_are_shown_by_their_kind():
    row = {"a": 1234.5, "b": {"min": 1, "max": 2}, "c": {"p50": 1, "p99": 2}, "d": [0.5, 1000.0]}
    assert table(["a", "b", "c.p99", "c", "d", "e.f"], [row])[2:] == [
        "| 1,234.5 | 1 - 2 | 2 | 1 / 2 | 0.5 1,000 | - |"
    ]


def test_a_section_without_rows_is_left_out():
    text = page_text([{"bench": "counters", "mailboxes": 7, "messages": 8}])
    assert "counter_repair" in text
    assert "| 7 | 8 |" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Duties"]
    missing, shown = text.split("so without a table: ")[1].split(".\n", 1)
    assert {"hotpath curve", "relay", "blob_gc"} <= set(missing.split(", "))
    assert "counters" not in missing
    assert "blob_gc" not in shown


def test_the_parts_of_the_command_line_are_those_that_are_measured():
    queue = QueueName("q")
    assert tuple(parts_of(Settings(), queue, [], 1000)) == BENCH_PARTS
    assert parts(" marks, relay") == ("marks", "relay")
    with pytest.raises(BadInput, match="'mark' is not allowed; hotpath, sizes"):
        parts("mark")


def test_a_part_that_is_measured_anew_takes_its_place_and_the_others_stay(tmp_path):
    page = tmp_path / "performance.md"
    counters = {"bench": "counters", "part": "counters", "mailboxes": 1, "messages": 1}
    counters["plan_again_messages_per_second"] = 1
    write_page(page, [counters, {"bench": "relay", "part": "relay"}])
    measurement = [("relay", lambda print_progress: [{"ratio": 4.5}, {"ratio": 4.6}])]
    run_all(Output(), {"relay": measurement}, ("relay",), page, lambda _: None)
    written = json.loads(Path(page.with_suffix(".json")).read_text(encoding="utf-8"))["rows"]
    assert [(row["bench"], row.get("ratio")) for row in written] == [
        ("counters", None),
        ("relay", 4.5),
        ("relay", 4.6),
    ]


def test_a_part_that_fails_ends_the_run_only_after_the_others(tmp_path, capsys):
    def fails(print_progress):
        raise StoreUnavailable("S3 at nowhere")

    table = {
        "curve": [("hotpath", fails)],
        "relay": [("relay", lambda print_progress: {"ratio": 4.5})],
    }
    page = tmp_path / "performance.md"
    with pytest.raises(StoreUnavailable, match="S3 at nowhere"):
        run_all(Output(), table, (), page, lambda _: None)
    assert "curve failed: StoreUnavailable: S3 at nowhere" in capsys.readouterr().err
    assert "4.5" in page.read_text(encoding="utf-8")


def test_parts_that_were_not_reached_keep_their_earlier_figures(tmp_path):
    page = tmp_path / "performance.md"
    write_page(page, [{"bench": "relay", "part": part, "ratio": 1} for part in ("relay", "far")])

    def stops(print_progress):
        raise KeyboardInterrupt

    table = {
        "relay": [("relay", lambda print_progress: {"ratio": 4.5})],
        "far": [("relay", stops)],
    }
    with pytest.raises(KeyboardInterrupt):
        run_all(Output(), table, ("relay", "far"), page, lambda _: None)
    written = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["rows"]
    assert {row["part"]: row["ratio"] for row in written} == {"far": 1, "relay": 4.5}


def test_figures_of_two_machines_do_not_share_a_page(tmp_path):
    page = tmp_path / "performance.md"
    rows = [{"bench": "relay", "part": "relay", "ratio": 1}]
    other = {"date": "2026-11-22", "machine": "64 cores (a mainframe)", "rows": rows}
    page.with_suffix(".json").write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(BadInput, match=r"64 cores .a mainframe.*Measure all parts"):
        run_all(Output(), {"far": []}, ("far",), page, lambda _: None)
