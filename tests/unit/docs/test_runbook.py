"""The runbook leads from each health word and each alert to the view and the act."""

import re
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from mailslice.cockpit.views import TABS
from mailslice.maintenance.alerts import readings
from mailslice.maintenance.health import Health, HealthFacts, verdict_of
from mailslice.model.errors import StoreUnavailable
from mailslice.model.settings import AlertSettings, clone_root
from tests.unit.docs.test_monitoring_kit import anchors

DOCS = clone_root() / "docs"
RUNBOOK = (DOCS / "runbook.md").read_text(encoding="utf-8")
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
VIEWS = ("overview", "maintenance", *(f"queue, {tab}" for tab in TABS.values()))
REPORT = {
    "status": "done",
    "browseStart": "2026-11-20T12:00:00Z",
    "contentStart": "2026-11-20T12:00:00Z",
    "oldestAgeSeconds": 9e6,
    "deadLetters": 1,
    "consumers": 0,
    "verdicts": {},
    "inFlight": 0,
}
ALERTS = {
    one.name
    for report in (REPORT, {"lockTimeoutSeconds": 60})
    for one in readings(report, AlertSettings(consumers=1), NOW)
}
RULES = {
    rule["alert"]
    for group in yaml.safe_load((DOCS / "prometheus" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
FACTS = {
    Health.LOST: [{"lost": 1}, {"waiting": 9, "in_broker": 0, "ready": 0}],
    Health.STUCK: [{"stuck": 1}],
    Health.NO_WORKERS: [{"ready": 1, "consumers": 0}],
    Health.LATE: [{"ready": 1, "waiting": 1, "oldest": timedelta(days=9)}],
    Health.UNKNOWN: [{"unanswered": {"S3": StoreUnavailable("away")}}, {}, {"ready": 0}],
    Health.HELD: [{"ready": 0, "waiting": 0, "held": "ada"}],
    Health.OK: [{"ready": 0, "waiting": 0}],
}


def table(heading):
    """First cells -> view and act, of the tables below a heading."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", RUNBOOK, re.MULTILINE | re.DOTALL)
    rows = {}
    for line in re.findall(r"^\| `.*\|$", section, re.MULTILINE):
        first, *_, view, act = (cell.strip() for cell in line.strip("|").split(" | "))
        for name in re.findall(r"`([^`]+)`", first):
            rows.setdefault(name, (view, act))
    return rows


def test_every_word_and_alert_has_its_line():
    assert set(table("Health words")) == {word.value for word in Health}
    assert set(table("Alerts")) - {"stuck_mails_postal"} == ALERTS | RULES


@pytest.mark.parametrize("heading", ["Health words", "Alerts"])
def test_each_leads_to_a_view_of_the_page_a_command_and_a_section(heading):
    for name, (view, act) in table(heading).items():
        assert view.startswith(VIEWS), name
        if name != "OK":
            assert "`mailslice " in act, name
        for anchor in re.findall(r"\]\(#([^)]+)\)", act):
            assert anchor in anchors(DOCS / "runbook.md"), name


@pytest.mark.parametrize("word", Health)
def test_the_command_that_the_word_advises_is_on_its_line(word):
    _, act = table("Health words")[word.value]
    for facts in FACTS[word]:
        verdict = verdict_of(HealthFacts("Q", **facts))
        assert verdict.health is word
        if verdict.next is not None:
            assert f"`{verdict.next}`" in act


@pytest.mark.parametrize(
    ("alert", "shows"),
    [
        ("MailsliceBrokerAlarm", "`mailslice worker top --once`"),
        ("MailsliceStoreDown", "`mailslice_exporter_up`"),
        ("MailsliceSmtpRefuses", "`mailslice_exporter_up`"),
    ],
)
def test_the_act_shows_what_neither_the_overview_nor_config_check_asks(alert, shows):
    _, act = table("Alerts")[alert]
    assert shows in act
