"""What is published: Prometheus text, the picture, the report."""

import xml.etree.ElementTree as ET

import pytest

from mailslice.duties.queue_audit.duty import file_of as audit_file_of
from mailslice.duties.queue_size.age_histogram import AgeHistogram
from mailslice.duties.queue_size.duty import DUTY, bars, file_of, slices_svg
from mailslice.duties.queue_size.metrics import samples
from mailslice.duties.stuck_mails_postal.metrics import METRICS_FILE
from mailslice.maintenance.artifacts import Artifacts, RunFolder
from mailslice.maintenance.metrics import exposition
from mailslice.maintenance.metrics import file_of as duty_file_of
from mailslice.maintenance.runner import partial_report
from mailslice.model.settings import S3Settings


def measured(**more):
    return {
        "measuredAt": "2026-11-21T12:00:00Z",
        "size": 3,
        "live": 3,
        "dead": 7,
        "unproven": 0,
        "oldest": "2026-11-21T11:00:00Z",
        "oldestAgeSeconds": 3600.0,
        "browseStart": "2026-11-21T11:00:00Z",
        "contentStart": "2026-11-21T10:00:00Z",
        "survivors": 2,
        "slices": [
            {"start": "2026-11-21T11:00:00Z", "live": 3, "dead": 7, "survivors": 2, "unproven": 0}
        ],
        "fullest": {"slice": "2026-11-21T11:00:00Z", "mails": 10},
        "shape": AgeHistogram().top(5),
        "deadLetters": None,
        "lastSeenEmpty": None,
        **more,
    }


def test_the_text_has_a_sample_for_what_is_known_and_none_for_what_is_not():
    text = exposition(samples("spool", measured())).decode()
    assert 'mailslice_queue_size{queue="spool"} 3.0\n' in text
    assert 'mailslice_queue_dead_rows{queue="spool"} 7.0\n' in text
    assert 'mailslice_queue_survivors{queue="spool"} 2.0\n' in text
    assert 'mailslice_queue_oldest_mail_age_seconds{queue="spool"} 3600.0\n' in text
    assert "dead_letters{" not in text
    assert "last_seen_empty" not in text


def test_an_empty_queue_says_zero_and_has_no_oldest_mail():
    text = exposition(
        samples("spool", measured(size=0, live=0, oldest=None, oldestAgeSeconds=None))
    ).decode()
    assert 'mailslice_queue_size{queue="spool"} 0.0\n' in text
    assert "oldest" not in text


def test_a_hostile_domain_cannot_break_the_text():
    shape = {
        **AgeHistogram().top(1),
        "domains": [{"domain": 'a"} 1\nevil_metric 7\x1b', "total": 2, "counts": [2] + [0] * 9}],
    }
    text = exposition(samples("spool", measured(shape=shape))).decode()
    assert not any(line.startswith("evil") for line in text.splitlines())
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("queue", "file"),
    [("spool", "metrics/mailslice-spool.prom"), ("a b.c%", "metrics/mailslice-a%20b%2Ec%25.prom")],
)
def test_each_queue_has_its_own_file(queue, file):
    assert file_of(queue) == file


def test_no_two_duties_write_the_same_file_whatever_the_queues_are_called():
    names = ["spool", "audit-spool", "audit-", "postal", "audit%2Dspool", "%70ostal"]
    names += [f"mailslice-{name}" for name in names]
    files = [file_of(name) for name in names] + [audit_file_of(name) for name in names]
    files += [duty_file_of("queue_size", name) for name in [*names, None]]
    assert len({*files, METRICS_FILE}) == len(files) + 1
    assert file_of("audit-spool") == "metrics/mailslice-audit%2Dspool.prom"


def test_bars_sum_up_neighbours_and_lose_no_row():
    slices = [{"start": str(at), "live": at, "dead": 1, "unproven": 2} for at in range(250)]
    found = bars(slices, 100)
    assert len(found) == 84
    assert sum(bar[1] for bar in found) == sum(range(250))
    assert sum(bar[2] for bar in found) == 250
    assert found[1][0] == "3"


@pytest.mark.parametrize(
    "slices", [[], [{"start": "2026-11-21T11:00:00Z", "live": 3, "dead": 7, "unproven": 1}]]
)
def test_the_picture_is_svg_without_scripts_or_outside_references(slices):
    picture = slices_svg("a$b<script>", measured(slices=slices, unproven=1))
    root = ET.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not [each for each in root.iter() if each.tag.endswith("script")]
    references = [
        value
        for each in root.iter()
        for name, value in each.attrib.items()
        if name.endswith("href")
    ]
    assert all(value.startswith("#") for value in references)
    assert picture == slices_svg("a$b<script>", measured(slices=slices, unproven=1))


def test_the_report_keeps_the_newest_slices_and_sums_up_the_rest(tmp_path):
    folder = RunFolder(Artifacts(str(tmp_path), S3Settings()), "queue_size", "spool", "r1")
    slices = [
        {"start": f"s{at}", "live": 1, "dead": 2, "survivors": 1, "unproven": 0}
        for at in range(503)
    ]
    folder.write_json("plan.json", {"decided": {"measured": measured(slices=slices)}})
    folder.write_json("applied.json", {"metrics": "m", "plot": "p"})
    found = partial_report(DUTY, folder)
    assert len(found["slices"]) == 500
    assert found["slices"][0]["start"] == "s3"
    assert found["olderSlices"] == {"count": 3, "live": 3, "dead": 6, "survivors": 3, "unproven": 0}
    assert (found["metrics"], found["plot"], found["size"]) == ("m", "p", 3)
