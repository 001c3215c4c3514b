"""Which fields of a report a person must hear of, and how often."""

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mailslice.duties.stuck_mails.duty import DUTY as STUCK_MAILS
from mailslice.maintenance.alerts import alerts, new_alerts, past_alerts, readings
from mailslice.maintenance.artifacts import Artifacts, RunFolder, iso
from mailslice.maintenance.metrics import duty_samples, exposition, file_of
from mailslice.maintenance.result import Summaries
from mailslice.model.mail import QueueName
from mailslice.model.settings import AlertSettings, S3Settings, load_settings

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SIZE = {
    "status": "done",
    "browseStart": "2026-11-20T12:00:00Z",
    "contentStart": "2026-11-20T12:00:00Z",
    "oldestAgeSeconds": 60.0,
    "deadLetters": 0,
    "consumers": 2,
}


def firing(report, **limits):
    return {
        each.name: each.text
        for each in readings(report, AlertSettings(**limits), NOW)
        if each.firing
    }


def test_all_is_well_and_every_figure_is_read_all_the_same():
    assert firing(SIZE) == {}
    names = [each.name for each in readings(SIZE, AlertSettings(), NOW)]
    assert names == [
        "browse_lag",
        "content_lag",
        "oldest_mail",
        "dead_letters",
        "consumers",
        "gate",
        "failed",
    ]


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "browse_lag",
            {"browseStart": "2026-11-10T12:00:00Z"},
            "browseStart is 11 days behind, more than 3d",
        ),
        (
            "content_lag",
            {"contentStart": "2026-11-01T12:00:00Z"},
            "contentStart is 20 days behind, more than 7d",
        ),
        (
            "oldest_mail",
            {"oldestAgeSeconds": 90000.5},
            "the oldest mail waits for 25 h, more than 1d",
        ),
        (
            "dead_letters",
            {"deadLetters": 12345},
            "12,345 messages are in the dead letter queue, more than 10",
        ),
        ("consumers", {"consumers": 0}, "0 consumers take mail from the queue, fewer than 1"),
        (
            "lost",
            {"verdicts": {"lost": 2, "lost or ghost": 1, "waiting": 9}},
            "3 mails are in no queue: lost, or done without a mark, more than 0",
        ),
        ("bare", {"verdicts": {"bare": 1}}, "1 mails have lost their content, more than 0"),
        (
            "zombies",
            {"inFlight": 9, "planned": 3, "closed": 0, "failed": 1, "noted": 2},
            "3 mails were in flight far too long, more than 0",
        ),
        (
            "zombies",
            {"lockTimeoutSeconds": 600.0, "found": 12},
            "12 messages of Postal are stuck or gone, more than 0",
        ),
        (
            "lost",
            {"lockTimeoutSeconds": 600.0, "found": 0, "lost": 2},
            "2 messages of Postal had lost their content or their row, more than 0",
        ),
        (
            "unreadable",
            {"lockTimeoutSeconds": 600.0, "unreadable": {"3": "no right", "5": "gone"}},
            "servers of Postal that cannot be read in full: 3, 5",
        ),
        (
            "gate",
            {"status": "refused", "message": "check: gate check of x: not true"},
            "check: gate check of x: not true",
        ),
        ("failed", {"status": "failed", "message": "apply did not end"}, "apply did not end"),
    ],
)
def test_each_figure_over_its_limit_is_an_alert_of_its_own(name, change, text):
    assert firing({**SIZE, **change}) == {name: text}


@pytest.mark.parametrize(
    ("change", "limits"),
    [
        ({"browseStart": "2026-11-18T12:00:00Z"}, {}),
        ({"deadLetters": 10}, {}),
        ({"deadLetters": 11}, {"dead_letters": 11}),
        ({"oldestAgeSeconds": 10.0**9}, {"oldest_mail": timedelta(0)}),
        ({"browseStart": "2001-01-01T00:00:00Z"}, {"browse_lag": timedelta(0)}),
        ({"consumers": 0}, {"consumers": 0}),
        ({"verdicts": {"lost": 1}}, {"lost": 1}),
        ({"verdicts": {}}, {}),
        (
            {
                "verdicts": {"lost": 5},
                "params": {"slices_from": "2026-11-20T00:00:00Z", "slices_before": None},
            },
            {},
        ),
    ],
)
def test_at_the_limit_or_with_a_limit_of_its_own_all_is_well(change, limits):
    assert firing({**SIZE, **change}, **limits) == {}


def test_stuck_mails_has_no_figure_of_postal():
    """Both tell their lock time-out. A second sample of `zombies` breaks a scrape."""
    report = {"lockTimeoutSeconds": 600.0, "inFlight": 9, "planned": 3, "status": "done"}
    read = readings(report, AlertSettings(), NOW)
    assert [(each.name, each.value) for each in read] == [
        ("zombies", 3),
        ("gate", 0),
        ("failed", 0),
    ]


def test_what_is_unknown_is_no_figure():
    unknown = dict.fromkeys(SIZE, None)
    assert [each.name for each in readings(unknown, AlertSettings(), NOW)] == ["gate", "failed"]
    assert [each.name for each in readings({}, AlertSettings(), NOW)] == ["gate", "failed"]


def test_nobody_waits_in_an_empty_queue_and_that_is_a_figure():
    idle = {"size": 0, "oldestAgeSeconds": None}
    first = next(iter(readings(idle, AlertSettings(), NOW)))
    assert (first.name, first.value) == ("oldest_mail", 0.0)


def test_the_limits_are_settings():
    given = load_settings(
        {"MAILSLICE_ALERT_BROWSE_LAG": "2h", "MAILSLICE_ALERT_DEAD_LETTERS": "0"}
    ).alert
    assert (given.browse_lag, given.dead_letters) == (timedelta(hours=2), 0)


def reported(report, earlier=(), now=NOW, run="r", tells=True):
    limits = AlertSettings(repeat=DAY)
    found = alerts(readings(report, limits, now), earlier, now, limits, tells=tells)
    return found, [
        each["name"]
        for each in new_alerts(
            {"finished": now.isoformat().replace("+00:00", "Z"), "alerts": found, "run": run}
        )
    ]


def test_an_alert_that_goes_on_is_told_once_a_day_and_remembers_since_when():
    report = {"deadLetters": 50}
    first, spoken = reported(report)
    assert spoken == ["dead_letters"]
    earlier = first
    for minutes in (15, 600, 1439):
        earlier, spoken = reported(report, earlier, NOW + timedelta(minutes=minutes))
        assert (spoken, earlier[0]["since"], earlier[0]["told"]) == (
            [],
            "2026-11-21T12:00:00Z",
            "2026-11-21T12:00:00Z",
        )
    again, spoken = reported(report, earlier, NOW + timedelta(minutes=1440))
    assert (spoken, again[0]["since"], again[0]["told"]) == (
        ["dead_letters"],
        "2026-11-21T12:00:00Z",
        "2026-11-22T12:00:00Z",
    )


def test_a_run_that_tells_nobody_leaves_the_alert_for_the_next_that_does():
    report = {"deadLetters": 50, "status": "failed"}
    found, spoken = reported(report, tells=False)
    assert (spoken, [one["told"] for one in found]) == ([], [None, None])
    later, spoken = reported(report, found, NOW + timedelta(minutes=15))
    assert spoken == ["dead_letters", "failed"]
    assert {one["since"] for one in later} == {iso(NOW)}
    between, spoken = reported(report, later, NOW + 2 * DAY, tells=False)
    assert (spoken, [one["told"] for one in between]) == ([], [one["told"] for one in later])
    assert reported(report, between, NOW + 2 * DAY)[1] == ["dead_letters", "failed"]


def test_one_that_was_over_and_comes_back_is_told_anew():
    first, _ = reported({"deadLetters": 50})
    between, _ = reported({"deadLetters": 0}, first, NOW + timedelta(minutes=15))
    assert between == []
    back, spoken = reported({"deadLetters": 50}, between, NOW + timedelta(minutes=30))
    assert (spoken, back[0]["since"]) == (["dead_letters"], "2026-11-21T12:30:00Z")


def test_a_new_one_is_told_beside_one_that_goes_on():
    first, _ = reported({"deadLetters": 50})
    _, spoken = reported({"deadLetters": 50, "consumers": 0}, first, NOW + timedelta(minutes=15))
    assert spoken == ["consumers"]


def test_an_alert_that_is_unknown_goes_on_untold_until_its_figure_is_known():
    lost = {"status": "done", "verdicts": {"lost": 3}}
    first, _ = reported(lost)
    two_days = NOW + 2 * DAY
    for unknown in (
        {"status": "failed", "verdicts": None},
        {"status": "refused", "verdicts": {"lost": 0}},
        {"status": "done", "verdicts": {"lost": 0}, "params": {"slices_from": "2026-11-20"}},
        {"status": "done", "verdicts": {"lost": 0, "unknown": 5}},
    ):
        later, spoken = reported(unknown, first, two_days)
        assert [one for one in later if one["name"] == "lost"] == first
        assert "lost" not in spoken
        again, spoken = reported(lost, later, two_days)
        assert (spoken, again[0]["since"]) == (["lost"], first[0]["since"])
        assert reported({"status": "done", "verdicts": {"lost": 0}}, later, two_days)[0] == []


@pytest.mark.parametrize(
    ("later", "ends"),
    [
        ({"verdicts": {"lost": 0, "unknown": 1}}, False),
        ({"verdicts": {"lost": 0, "unknown": 1}, "census": {"unproved": None}}, False),
        ({"verdicts": {"lost": 0}, "params": {"older_than": "1d"}}, False),
        ({"verdicts": {"lost": 0}, "params": {"older_than": None}}, True),
    ],
)
def test_an_alert_about_lost_mails_ends_by_an_audit_that_leaves_none_in_doubt(later, ends):
    first, _ = reported({"status": "done", "verdicts": {"lost": 3}})
    assert (reported({"status": "done", **later}, first, NOW + DAY)[0] == []) is ends


@pytest.mark.parametrize(
    ("later", "names"),
    [
        ({"verdicts": {"bare": 0}, "params": {"older_than": "1d"}}, ["bare"]),
        ({"verdicts": {"bare": 0, "unknown": 7}, "params": {"older_than": None}}, []),
        ({"verdicts": {"bare": 0, "unknown": 7}}, []),
    ],
)
def test_an_audit_of_the_oldest_mails_alone_ends_no_alert_about_content(later, names):
    first, _ = reported({"status": "done", "verdicts": {"bare": 3}, "params": {"older_than": "1d"}})
    assert [one["name"] for one in first if one["name"] == "bare"] == ["bare"]
    found, _ = reported({"status": "done", **later}, first, NOW + DAY)
    assert [one["name"] for one in found] == names


def test_more_lost_mails_than_the_limit_are_an_alert_whatever_else_is_unknown():
    verdicts = {"lost": 2, "unknown": 5}
    known = [
        [(each.name, each.firing) for each in readings(report, limits, NOW) if each.name == "lost"]
        for report, limits in (
            ({"status": "done", "verdicts": verdicts}, AlertSettings(lost=1)),
            ({"status": "done", "verdicts": verdicts}, AlertSettings(lost=2)),
            ({"status": "done", "verdicts": {**verdicts, "unknown": 0}}, AlertSettings(lost=2)),
        )
    ]
    assert known == [[("lost", True)], [], [("lost", False)]]


def test_a_stuck_mails_run_without_a_plan_knows_of_no_mails_in_flight(tmp_path):
    folder = RunFolder(
        Artifacts(str(tmp_path), S3Settings()), "stuck_mails", QueueName("spool"), "r"
    )
    first, _ = reported({"status": "done", "inFlight": 9, "planned": 9})
    fields = STUCK_MAILS.report_fields(Summaries.load(folder, STUCK_MAILS.kinds))
    later, _ = reported({"status": "failed", "planned": 0, **fields}, first, NOW + DAY / 2)
    assert [one for one in later if one["name"] == "zombies"] == first


@pytest.mark.parametrize("name", ["gate", "failed"])
def test_a_run_that_failed_is_over_with_the_next_that_did_not(name):
    status = {"gate": "refused", "failed": "failed"}[name]
    first, _ = reported({"status": status})
    assert [one["name"] for one in first] == [name]
    assert reported({"status": "done"}, first)[0] == []


def test_an_alert_whose_limit_was_taken_away_does_not_go_on():
    off = AlertSettings(oldest_mail=timedelta(0), consumers=0)
    first, _ = reported({**SIZE, "oldestAgeSeconds": 9e9, "consumers": 0})
    assert len(first) == 2
    assert alerts(readings(SIZE, off, NOW), first, NOW, off) == []


def test_a_run_that_failed_is_told_each_time():
    report = {"status": "refused", "message": "gate"}
    first, _ = reported(report)
    assert reported(report, first, NOW + timedelta(minutes=15))[1] == ["gate"]


def test_a_report_that_is_not_at_its_end_has_no_news():
    assert new_alerts({"finished": None, "alerts": []}) == []
    assert new_alerts({}) == []


def test_metrics_say_every_figure_also_when_all_is_well():
    report = {
        **SIZE,
        "duty": "queue_size",
        "queue": 'a"b',
        "finished": "2026-11-21T12:00:00Z",
        "planned": 0,
        "deadLetters": 11,
    }
    text = exposition(
        duty_samples(report, readings(report, AlertSettings(), NOW), report.get("alerts") or ())
    ).decode()
    samples = {
        (each.name, each.labels.get("alert"), each.labels.get("outcome")): each
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }
    assert {each.labels["queue"] for each in samples.values()} == {'a"b'}
    assert samples["mailslice_alert", "dead_letters", None].value == 1
    assert samples["mailslice_alert", "consumers", None].value == 0
    assert samples["mailslice_alert_value", "browse_lag", None].value == 86400
    assert samples["mailslice_alert_limit", "dead_letters", None].value == 10
    assert samples["mailslice_duty_items", None, "planned"].value == 0
    assert samples["mailslice_duty_finished_timestamp_seconds", None, None].value == NOW.timestamp()


def test_each_duty_and_queue_has_a_metrics_file_of_its_own():
    assert file_of("queue_size", "a.b c") == "metrics/duty-queue_size-a%2Eb%20c.prom"
    assert file_of("reclaim", None) == "metrics/duty-reclaim.prom"


def test_alerts_that_are_over_are_remembered_for_a_day():
    def report(finished, alerts=(), past=()):
        return {"finished": iso(finished), "alerts": alerts, "pastAlerts": past}

    late, dead = {"name": "oldest", "text": "late"}, {"name": "dead", "text": "letters"}
    hour = timedelta(hours=1)
    (past,) = past_alerts(report(NOW - 2 * hour, [late, dead]), [dead], NOW)
    assert past == {**late, "until": iso(NOW - 2 * hour)}
    assert past_alerts(report(NOW, (), [past]), [], NOW + 21 * hour) == [past]
    assert past_alerts(report(NOW, (), [past]), [], NOW + 22 * hour) == []
    assert past_alerts(report(NOW, (), [past]), [late], NOW + hour) == []
    (again,) = past_alerts(report(NOW + hour, [late], [past]), [], NOW + 2 * hour)
    assert again["until"] == iso(NOW + hour)
    assert past_alerts({}, [], NOW) == []
