"""What the repeats of a benchmark are made into."""

from __future__ import annotations

import os
from statistics import median

import pytest

from mailslice.bench.arguments import counts, share
from mailslice.bench.hotpath import combined, spread
from mailslice.bench.measure import (
    Measurement,
    cpu_bound_rate,
    peak_mib,
    percentiles,
    share_of_cores,
)
from mailslice.bench.store_cpu import StoreCpu, cpu_between
from mailslice.bench.warm_up import is_level, own_mails
from mailslice.model.errors import BadInput
from mailslice.model.settings import Settings

NONE = {"cassandra": None, "rabbitmq": None, "s3": None}


def test_figures_of_all_runs_become_one_and_what_one_run_does_not_know_is_unknown() -> None:
    runs = [
        {"rate": rate, "ms": {"p50": rate / 10}, "tenths": [rate, 1], "cpu": cpu, "name": "x"}
        for rate, cpu in ((30, 1.0), (10, None), (20, 2.0))
    ]
    assert combined(runs, median) == {
        "rate": 20,
        "ms": {"p50": 2.0},
        "tenths": [20, 1],
        "cpu": None,
    }
    assert combined(runs, spread)["rate"] == {"min": 10, "median": 20, "max": 30}


def test_the_rate_of_tenths_shows_where_it_became_slow() -> None:
    measured = Measurement(
        ended=[*(0.1 * number for number in range(1, 11)), *(1 + number for number in range(1, 11))]
    )
    assert measured.rate_of_tenths() == [10.0] * 5 + [1.0] * 5
    assert Measurement(ended=[1.0] * 9).rate_of_tenths() == []


def test_the_rate_that_the_cpu_allows_needs_all_stores() -> None:
    measured = Measurement(
        cpu_seconds=1.0,
        stores={"cassandra": 1.0, "rabbitmq": 0.5, "s3": 1.5},
        latencies=[0.1] * 1000,
    )
    assert cpu_bound_rate(measured) == (os.cpu_count() or 1) * 1000 / 4
    assert cpu_bound_rate(Measurement(cpu_seconds=1.0, stores=NONE, latencies=[0.1])) is None
    assert measured.per_thousand(0.5) == 0.5
    assert measured.per_thousand(None) is None


def test_the_cores_are_shared_out_and_the_rest_is_told() -> None:
    cores = os.cpu_count() or 1
    measured = Measurement(
        seconds=10.0,
        cpu_seconds=2.0 * cores,
        stores={"cassandra": 1.0 * cores, "rabbitmq": 0.5 * cores, "s3": 4.0 * cores},
    )
    assert share_of_cores(measured) == {
        "worker": 0.2,
        "cassandra": 0.1,
        "rabbitmq": 0.05,
        "s3": 0.4,
        "rest": 0.25,
    }
    unknown = share_of_cores(Measurement(seconds=10.0, cpu_seconds=2.0 * cores, stores=NONE))
    assert (unknown["worker"], unknown["s3"], unknown["rest"]) == (0.2, None, None)


@pytest.mark.parametrize(
    ("seconds", "latencies"),
    [
        ([0.001], (1.0, 1.0, 1.0)),
        ([number / 1000 for number in range(100, 0, -1)], (50.0, 95.0, 99.0)),
        ([0.002, 0.001], (1.0, 2.0, 2.0)),
    ],
)
def test_percentiles_are_nearest_ranks(
    seconds: list[float], latencies: tuple[float, float, float]
) -> None:
    assert percentiles(seconds) == dict(zip(("p50", "p95", "p99"), latencies, strict=True))


def test_memory_is_this_process_own() -> None:
    assert 10 < peak_mib() < 4000


def test_stores_on_other_machines_have_no_cpu_figures() -> None:
    settings = Settings().model_copy(
        update={
            "cassandra": Settings().cassandra.model_copy(
                update={"contact_points": ("192.0.2.1", "127.0.0.1")}
            )
        }
    )
    assert StoreCpu(settings).seconds()["cassandra"] is None


def test_a_store_that_was_restarted_between_two_readings_has_none() -> None:
    assert cpu_between({**NONE, "s3": 5.0}, {**NONE, "s3": 1.0})["s3"] is None
    assert cpu_between({**NONE, "s3": 5.0}, {**NONE, "s3": 7.5})["s3"] == 2.5


@pytest.mark.parametrize(("text", "value"), [("0.8", 0.8), ("80%", 0.8), ("0", 0.0), ("1", 1.0)])
def test_shares(text: str, value: float) -> None:
    assert share("--load")(text) == value


@pytest.mark.parametrize("text", ["1.1", "-1", "nan", "inf", "", "x", "800%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--load"):
        share("--load")(text)


def test_numbers_with_commas() -> None:
    assert counts("--processes")("1,2, 4") == (1, 2, 4)
    for text in ("", "1,", "0", "1;2"):
        with pytest.raises(BadInput, match="--processes"):
            counts("--processes")(text)


def test_a_warm_up_ends_when_four_rounds_brought_nothing() -> None:
    assert not is_level([])
    assert not is_level([1.0] * 4)
    assert is_level([1.0] * 5)
    assert not is_level([9.0, 7.0, 5.0, 3.0, 1.0])
    assert not is_level([1.0, 1.2, 1.2, 1.2, 0.96])
    assert is_level([9.0, 1.0, 5.0, 0.98, 1.5, 3.0]), "a dear round is somebody else's doing"


def test_a_process_is_warmed_up_by_few_mails_when_they_are_large() -> None:
    assert own_mails(4096, 64) == 256
    assert own_mails(25 * 1024 * 1024, 64) == 1
