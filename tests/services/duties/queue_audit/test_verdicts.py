"""Every verdict, planted, in one audit with a census beside a live worker, on a queue that is
mailslice's alone and then on a shared one.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mailslice.maintenance.artifacts import artifacts
from mailslice.model.mail import EnqueueId
from mailslice.model.names import RabbitNames
from mailslice.model.stages import MailStage, Stage
from mailslice.stores.cassandra.own.quarantine import Content, QuarantinedMail, State
from tests.services.duties.audited import AGE, MINUTE, Spool, working


@dataclass
class Planted:
    spool: Spool
    ids: dict[str, EnqueueId] = field(default_factory=dict)
    report: dict = field(default_factory=dict)
    shared_report: dict = field(default_factory=dict)
    found: dict[EnqueueId, str] = field(default_factory=dict)
    shared_found: dict[EnqueueId, str] = field(default_factory=dict)
    order: list[EnqueueId] = field(default_factory=list)

    def verdict(self, name: str) -> str:
        return self.found[self.ids[name]]

    def shared_verdict(self, name: str) -> str:
        return self.shared_found[self.ids[name]]


def quarantined(
    spool: Spool,
    enqueue_id: EnqueueId,
    state: State,
    action: str = "closed",
    table: str = "quarantine",
) -> None:
    now = datetime.now(UTC)
    mail = QuarantinedMail(
        enqueue_id,
        "m",
        state,
        action,
        "loaded",
        "host:1:x",
        now,
        AGE,
        "held too long",
        now,
        b"{}",
        "h",
        "b",
        Content.KEPT,
    )
    getattr(spool.stores.own, table).add(spool.queue, mail)


@pytest.fixture(scope="module")
def planted(make_spool) -> Planted:
    spool = make_spool()
    all_of = Planted(spool)
    ids, put = all_of.ids, spool.put
    ids["ghost"] = put("ghost")
    ids["in flight"] = put("in flight")
    with working(spool, complete=1) as handed:
        assert handed == [ids["ghost"], ids["in flight"]]
        spool.unmark(ids["ghost"])
        ids |= {name: put(name) for name in ("waiting 1", "waiting 2", "waiting 3")}
        ids["bare, waiting"] = put("bare", content=False)
        ids["bare"] = put("bare", content=False, message=False)
        ids["lost"] = put("lost", message=False)
        ids["lost 2"] = put("lost 2", message=False)
        ids["dead-lettered"] = put("dead", to=RabbitNames(spool.queue).dead_letter_exchange)
        ids["delayed"] = put("delayed", message=False)
        spool.delay(ids["delayed"], datetime.now(UTC) + timedelta(days=1))
        ids["overdue"] = put("overdue", message=False)
        spool.delay(ids["overdue"], datetime.now(UTC) - 5 * MINUTE)
        ids["held"] = put("held", message=False)
        quarantined(spool, ids["held"], State.KEPT)
        ids["sent"] = put("sent", message=False)
        assert spool.stores.own.mail_stages.advance(
            spool.queue,
            None,
            MailStage(ids["sent"], "host:1:x", 1, 1, (), {"c@d.example": Stage.SENT}),
        )
        ids["sending"] = put("sending", message=False)
        assert spool.stores.own.mail_stages.advance(
            spool.queue,
            None,
            MailStage(ids["sending"], "host:1:x", 1, 1, (), {"c@d.example": Stage.SENDING}),
        )
        ids["noted"] = put("noted")
        quarantined(spool, ids["noted"], State.NOTED)
        ids["young"] = put("young", age=MINUTE, message=False)
        ids["deleted"] = put("deleted")
        spool.mark(ids["deleted"])
        ids["behind"] = put("behind browseStart", age=timedelta(days=3), message=False)
        all_of.report, all_of.found = spool.audit(census=True), spool.verdicts()
        all_of.shared_report = spool.shared().audit(census=True)
        all_of.shared_found = spool.verdicts()
    all_of.order = [each for each, _, _ in spool.messages()]
    return all_of


def test_each_mail_has_the_verdict_that_was_planted(planted):
    names = {one: name for name, one in planted.ids.items()}
    assert {names[one]: verdict for one, verdict in planted.found.items()} == {
        "ghost": "ghost",
        "in flight": "in flight",
        "waiting 1": "waiting",
        "waiting 2": "waiting",
        "waiting 3": "waiting",
        "bare, waiting": "bare",
        "bare": "bare",
        "lost": "lost",
        "lost 2": "lost",
        "dead-lettered": "dead-lettered",
        "delayed": "delayed",
        "overdue": "lost",
        "held": "held",
        "sent": "ghost",
        "sending": "lost",
        "noted": "waiting",
    }


def test_the_report_counts_every_verdict_zeros_too(planted):
    assert planted.report["verdicts"] == {
        "waiting": 4,
        "delayed": 1,
        "held": 1,
        "in flight": 1,
        "dead-lettered": 1,
        "lost": 4,
        "lost or ghost": 0,
        "ghost": 2,
        "bare": 2,
        "unknown": 0,
    }
    assert (planted.report["status"], planted.report["mails"], planted.report["queue"]) == (
        "done",
        16,
        planted.spool.queue,
    )
    assert (planted.report["planned"], planted.report["applied"], planted.report["failed"]) == (
        16,
        16,
        0,
    )
    assert planted.report["olderThan"] == "20m"


def test_on_a_queue_that_james_shares_nothing_is_called_lost_alone(planted):
    assert {
        name: planted.shared_verdict(name) for name in ("lost", "lost 2", "overdue")
    } == dict.fromkeys(("lost", "lost 2", "overdue"), "lost or ghost")
    assert planted.shared_verdict("ghost") == "ghost"
    assert (
        planted.shared_report["verdicts"]["lost"],
        planted.shared_report["verdicts"]["lost or ghost"],
    ) == (0, 4)


def test_the_census_says_what_it_held_and_knows_of_the_worker(planted):
    census = planted.report["census"]
    assert (
        census["taken"],
        census["held"],
        census["withConsumers"],
        census["recorded"],
        census["unproved"],
    ) == (True, 6, 1, 1, None)


def test_every_message_is_given_back_in_its_order_and_none_is_doubled(planted):
    names = {one: name for name, one in planted.ids.items()}
    assert [names[one] for one in planted.order] == [
        "in flight",
        "waiting 1",
        "waiting 2",
        "waiting 3",
        "bare, waiting",
        "noted",
        "deleted",
    ]


def test_the_reasons_speak_to_people_and_name_no_address(planted):
    spool, ids = planted.spool, planted.ids
    assert "its header and body blobs are missing" in spool.why(ids["bare"])
    assert "completed it, and its deleted mark is missing" in spool.why(ids["ghost"])
    assert "James may have delivered it" in spool.why(ids["lost"])
    assert "it was delayed until" in spool.why(ids["overdue"])
    assert "in quarantine (kept)" in spool.why(ids["held"])
    world = artifacts(spool.settings)
    assert [name for name in world.files("") if b"secret.person" in world.read(name)] == []


def test_metrics_are_published(planted):
    world = artifacts(planted.spool.settings)
    text = world.read(f"metrics/mailslice-audit-{planted.spool.queue}.prom").decode()
    assert (
        f'mailslice_audit_mails{{queue="{planted.spool.queue}",verdict="lost or ghost"}} 4.0'
        in text
    )
    assert f'mailslice_audit_mails{{queue="{planted.spool.queue}",verdict="unknown"}} 0.0' in text


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("state", "message", "verdict"),
    [
        (State.KEPT, False, "lost"),
        (State.KEPT, True, "waiting"),
        (State.RELEASING, False, "lost"),
        (State.RECOVERING, False, "held"),
    ],
)
def test_a_mail_whose_recipients_in_doubt_failed_is_judged_by_the_others(
    spool, state, message, verdict
):
    """Those in doubt wait in quarantine, and nobody would see that its message is lost."""
    one = spool.put(message=message)
    quarantined(spool, one, state, "failed")
    record = MailStage(one, "host:1:x", 2, 2, ("c@d.example",), {"a@d.example": Stage.FAILED})
    assert spool.stores.own.mail_stages.advance(spool.queue, None, record)
    spool.audit(census=True)
    assert spool.verdicts() == {one: verdict}


@pytest.mark.parametrize("waiting", [0, 1])
def test_mails_that_a_move_took_out_and_did_not_bring_anywhere_are_counted(spool, waiting):
    for _ in range(waiting):
        spool.put()
    for state in (State.CLOSING, State.KEPT, State.TAKEN, State.DISCARDING):
        quarantined(spool, EnqueueId(uuid4()), state, "move", "moving_mails")
    report = spool.audit()
    assert (report["takenOut"], report["mails"]) == (2, waiting)
    assert report["message"].endswith("; 2 mails are in moves: repeat one that was cut off")
