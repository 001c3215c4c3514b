"""Tables and JSON lines: types, and what mails may not do to a terminal."""

import io
import json
import sys
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from mailslice.cli.output import Output, StdoutClosedError, cell, iso, json_line


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (datetime(2026, 11, 20, 9, 8, 7, tzinfo=UTC), "2026-11-20T09:08:07Z"),
        (datetime(2026, 11, 20, 9, 8, 7, 654321, tzinfo=UTC), "2026-11-20T09:08:07.654Z"),
        (
            datetime(2026, 11, 20, 9, 8, 7, tzinfo=timezone(timedelta(hours=1))),
            "2026-11-20T08:08:07Z",
        ),
    ],
)
def test_times_are_iso_8601_in_utc(instant, text):
    assert iso(instant) == text


def test_json_has_plain_values():
    line = json_line(
        {
            "time": datetime(2026, 1, 1, tzinfo=UTC),
            "id": UUID(int=7),
            "window": timedelta(minutes=90),
            "bytes": b"\xff{}",
            "list": ("a", None, 3),
            "object": {"k": b"v"},
        }
    )
    assert json.loads(line) == {
        "time": "2026-01-01T00:00:00Z",
        "id": "00000000-0000-0000-0000-000000000007",
        "window": "90m",
        "bytes": "\ufffd{}",
        "list": ["a", None, 3],
        "object": {"k": "v"},
    }


def test_json_is_ascii_without_control_characters_and_reads_back():
    text = "\x1b[31m\u202eexe\u202c ü 🚢 \ud800 \x7f\x9b\u2028"
    line = json_line({"name": text})
    assert line.isascii()
    assert line.replace("\x7f", "").isprintable()
    assert json.loads(line)["name"] == text


def test_cells_escape_what_would_draw_on_the_terminal():
    assert cell("\x1b[31mred\u202e") == "\\x1b[31mred\\u202e"
    assert cell(["a\nb", "c"]) == "a\\nb\nc"
    assert cell({"k\x07": "v"}) == "k\\x07: v"
    assert (cell(None), cell(True), cell([]), cell(7)) == ("-", "yes", "-", "7")


def test_a_table_shows_markup_as_it_is(capsys):
    Output().rows([{"name": "[bold]x[/bold] :smile: [/]", "n": 3}])
    out = capsys.readouterr().out
    assert "[bold]x[/bold] :smile: [/]" in out
    assert "\x1b" not in out


def test_a_text_of_a_megabyte_is_cut_in_a_table_and_whole_in_json():
    huge = "A" * 1_000_000
    assert cell(huge) == "A" * 5000 + "…"
    assert len(cell({"to": [huge], "header": {"x": huge}})) < 11_000
    assert huge in json_line({"name": huge})


def test_a_table_off_a_terminal_cuts_nothing(capsys):
    Output().rows([{"a": "x" * 150, "b": "y" * 150}])
    out = capsys.readouterr().out
    assert "x" * 150 in out
    assert "y" * 150 in out


def test_rows_count_and_say_when_there_are_none(capsys):
    assert Output(as_json=True).rows({"i": i} for i in range(3)) == 3
    assert capsys.readouterr().out == '{"i": 0}\n{"i": 1}\n{"i": 2}\n'
    assert Output().rows([], empty="no mail") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no mail\n")
    assert Output().rows({"i": i} for i in range(1200)) == 1200
    assert capsys.readouterr().out.count("i\n") == 3


def test_json_rows_appear_one_by_one(capsys):
    seen = []

    def items():
        for i in range(2):
            yield {"i": i}
            seen.append(capsys.readouterr().out)

    Output(as_json=True).rows(items())
    assert seen == ['{"i": 0}\n', '{"i": 1}\n']


def test_a_reader_that_went_away_is_told_apart(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(StdoutClosedError):
        Output(as_json=True).one({"a": 1})


def test_numbers_stand_beside_each_other_and_objects_of_one_shape_in_a_grid():
    assert cell(["5", "10", "1280+"]) == "    5    10 1280+"
    assert cell([0, 12]) == "    0    12"
    assert (
        cell([{"domain": "x.example", "total": 3}, {"domain": "y", "total": 12}])
        == "domain     total\nx.example  3    \ny          12   "
    )
    assert (
        cell([{"domain": "例え例え.jp", "total": 3}, {"domain": "ab.example", "total": 12}])
        == "domain       total\n例え例え.jp  3    \nab.example   12   "
    ), "a wide character takes two columns of a terminal"
    assert cell([{"a": 1}, {"b": 2}]) == "a: 1\nb: 2"
    assert cell(["a@b.c", "d@e.f"]) == "a@b.c\nd@e.f"


def test_objects_in_objects_stand_in_one_line_and_figures_beside_each_other() -> None:
    assert (
        cell({"s3": {"enqueue": 1.8, "dequeue": 1.2}, "all": {}})
        == "s3: enqueue 1.8, dequeue 1.2\nall: -"
    )
    assert cell({"ms": {"p50": {"min": 1, "max": 2}}}) == "ms: p50 (min 1, max 2)"
    assert cell([785.2, 1654.0]) == "785.2 1654.0"
