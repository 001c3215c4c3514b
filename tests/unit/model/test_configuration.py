"""How the configuration of the view may change."""

from datetime import timedelta

import pytest

from mailslice.model.configuration import ViewConfiguration, why_refused

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (ViewConfiguration(HOUR, 2, 1000), ViewConfiguration(HOUR, 2, 7)),
        (ViewConfiguration(HOUR, 2, 7), ViewConfiguration(HOUR, 3, 1000)),
        (ViewConfiguration(HOUR), ViewConfiguration(timedelta(minutes=20))),
        (ViewConfiguration(HOUR), ViewConfiguration(timedelta(seconds=1))),
    ],
)
def test_what_james_accepts(stored, wanted):
    assert why_refused(stored, wanted) is None


@pytest.mark.parametrize(
    ("stored", "wanted", "why"),
    [
        (
            ViewConfiguration(HOUR, 2),
            ViewConfiguration(HOUR, 1),
            "bucketCount may not decrease: stored 2, wanted 1",
        ),
        (
            ViewConfiguration(HOUR),
            ViewConfiguration(2 * HOUR),
            "sliceWindow may not grow: stored 1h, wanted 2h",
        ),
        (
            ViewConfiguration(HOUR),
            ViewConfiguration(timedelta(minutes=50)),
            "sliceWindow must divide the stored one: stored 1h, wanted 50m",
        ),
        (
            ViewConfiguration(timedelta(seconds=10)),
            ViewConfiguration(timedelta(seconds=7)),
            "sliceWindow must divide the stored one: stored 10s, wanted 7s",
        ),
    ],
)
def test_what_james_refuses_is_said_in_a_sentence(stored, wanted, why):
    assert why_refused(stored, wanted) == why


@pytest.mark.parametrize(
    ("window", "buckets", "pace"),
    [(timedelta(0), 1, 1), (timedelta(milliseconds=1500), 1, 1), (HOUR, 0, 1), (HOUR, 1, 0)],
)
def test_a_configuration_that_cannot_be_is_refused_when_built(window, buckets, pace):
    with pytest.raises(ValueError, match=r"whole number of seconds|at least 1"):
        ViewConfiguration(window, buckets, pace)


def test_a_configuration_is_shown_in_james_words():
    assert (
        str(ViewConfiguration(timedelta(minutes=90), 3))
        == "sliceWindow=90m bucketCount=3 updateBrowseStartPace=1000"
    )
