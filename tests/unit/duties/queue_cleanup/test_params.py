"""What a cleanup can be told, and what it refuses."""

from datetime import UTC, datetime

import pytest

from mailslice.duties.queue_cleanup.params import Params
from mailslice.model.errors import BadInput


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"slices_before": "0001-01-01T00:00:00+14:00"}, "before the year 1"),
        ({"slices_from": "9999-12-31T23:59:59-14:00"}, "after the year 9999"),
        ({"slices_from": "soon"}, "slices_from='soon': no time; allowed: 2026-11-23T10:00:00Z"),
        ({"slices_from": 1795000000}, "no time"),
        ({"restarted": True}, "no time"),
        ({"grace": "36501d"}, "at most 36500d"),
        ({"grace": "99999999999999999999d"}, "longer than any clock"),
        ({"time_limit": "1000000w"}, "at most 36500d"),
        ({"sweep": True, "slices_from": "2026-11-01"}, "no range of slices"),
        ({"slices_from": "2026-11-02", "slices_before": "2026-11-02"}, "is not before"),
        ({"aside": True}, "aside goes with sweep"),
        ({"rate": -1}, "rate"),
        ({"intensity": 0}, "intensity"),
    ],
)
def test_what_no_run_can_be_told_is_wrong_input(given, says):
    with pytest.raises(BadInput, match=says):
        Params.parse(given)


def test_the_run_of_each_sunday_sweeps():
    assert Params.parse(dict(Params.WEEKLY)).sweep


@pytest.mark.parametrize("given", ["20261120", 20261120, "2026-11-20", " 2026-11-20T02:00+02:00"])
def test_a_date_in_any_form_of_iso_8601_is_that_day(given):
    params = Params.parse({"slices_from": given, "restarted": given})
    assert params.slices_from == params.restarted == datetime(2026, 11, 20, tzinfo=UTC)
    assert Params.parse(params.as_json()) == params
