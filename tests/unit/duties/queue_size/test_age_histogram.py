"""The histogram: columns, domains, what is counted once and what is not."""

import pickle
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.codec.addresses import domain_of
from mailslice.duties.queue_size.age_histogram import COLUMNS, AgeHistogram, column

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("minutes", "name"),
    [
        (-1, "5"),
        (0, "5"),
        (5, "5"),
        (5.01, "10"),
        (10, "10"),
        (11, "20"),
        (79, "80"),
        (640, "640"),
        (1280, "1280"),
        (1280.5, "1280+"),
        (99999, "1280+"),
    ],
)
def test_an_age_falls_into_the_column_that_names_its_upper_bound(minutes, name):
    assert COLUMNS[column(timedelta(minutes=minutes))] == name


@pytest.mark.parametrize(
    ("address", "domain"),
    [
        ("a@Example.ORG", "example.org"),
        ('"a@b"@x.de', "x.de"),
        ("postmaster", "(none)"),
        ("@x.de", "(none)"),
        ("a@", "(none)"),
        ("", "(none)"),
        ("a@" + "x" * 300, "x" * 253),
    ],
)
def test_only_the_domain_of_an_address_is_kept(address, domain):
    assert domain_of(address) == domain


def test_a_mail_counts_once_a_domain_and_once_in_the_total():
    histogram = AgeHistogram()
    histogram.add(["a@x.de", "b@X.de", "c@y.de"], NOW - timedelta(minutes=7), NOW)
    table = histogram.top(10)
    assert table["total"] == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert [(row["domain"], row["total"]) for row in table["domains"]] == [("x.de", 1), ("y.de", 1)]


def test_a_mail_without_recipients_is_counted_too():
    histogram = AgeHistogram()
    histogram.add([], NOW, NOW)
    assert histogram.top(1)["domains"] == [
        {"domain": "(none)", "total": 1, "counts": [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]}
    ]


def test_parts_come_from_workers_and_add_up():
    one, other = AgeHistogram(), AgeHistogram()
    one.add(["a@x.de"], NOW, NOW)
    other.add(["b@x.de"], NOW - timedelta(days=3), NOW)
    other.add(["b@z.de"], NOW, NOW)
    one.merge(pickle.loads(pickle.dumps(other)))
    assert one.top(5)["domains"] == [
        {"domain": "x.de", "total": 2, "counts": [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]},
        {"domain": "z.de", "total": 1, "counts": [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]},
    ]
    assert one.top(5)["total"] == [2, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_the_busiest_domains_are_named_and_the_rest_is_summed_up():
    histogram = AgeHistogram()
    for domain, count in (("a.de", 3), ("b.de", 1), ("c.de", 2), ("d.de", 1)):
        for _ in range(count):
            histogram.add([f"x@{domain}"], NOW, NOW)
    assert [(row["domain"], row["total"]) for row in histogram.top(2)["domains"]] == [
        ("a.de", 3),
        ("c.de", 2),
        ("(others)", 2),
    ]
