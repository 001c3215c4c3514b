"""What stops a run before anything changes, and what a run can be held to."""

import json
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mailslice.duties.counter_repair import gates, survey
from mailslice.duties.counter_repair.duty import CounterRepair
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.lock import LockHeld
from mailslice.model.clock import system_clock
from mailslice.model.errors import (
    BadInput,
    ClockSkew,
    GateFailed,
    PlanRefused,
    Refused,
    StoreUnavailable,
)
from mailslice.stores import open_stores
from mailslice.stores.cassandra.packed import PackedReader
from mailslice.stores.cassandra.ranges import HIGHEST, LOWEST
from tests.services.duties.counter_repair.making import Mailboxes, create_mailbox_tables, timeuuid


@pytest.fixture(scope="module")
def drifted(shared_james):
    """A planned and checked run with one drifted mailbox, and its folder.

    Tests spoil copies of it.
    """
    mailbox = shared_james.mailbox(messages=2, add=(1, 0))
    request = shared_james.request(mailboxes=[str(mailbox)])
    shared_james.steps(request, "plan", "check")
    return (
        mailbox,
        request,
        RunFolder(artifacts(shared_james.settings), request.duty, request.queue, request.run),
    )


def test_without_james_tables_it_refuses_by_name(make_fresh):
    settings = make_fresh().settings
    with open_stores(settings) as stores:
        james = Mailboxes(settings, stores)
        with pytest.raises(
            Refused, match="no table imapuidtable, mailbox, mailboxcounters, messageidtable"
        ):
            james.run()
        with pytest.raises(Refused, match="no table mailbox, mailboxcounters, messageidtable"):
            james.run(trust_projection=True)
        for table in ("mailbox", "mailboxcounters", "messageidtable", "imapuidtable"):
            stores.cassandra.execute(
                f"CREATE TABLE {settings.cassandra.keyspace}.{table} (id timeuuid PRIMARY KEY,"
                f" mailboxid timeuuid, uid bigint)"
            )
        with pytest.raises(
            Refused, match="messageidtable has no column messageid, modseq, flagseen"
        ):
            james.run()


@pytest.mark.parametrize("file", ["plan.json", "drifts"])
def test_a_plan_that_was_edited_is_refused(james, drifted, file):
    mailbox, request, folder = drifted
    world = folder.artifacts
    name = (
        folder.file(file)
        if file == "plan.json"
        else next(each for each in world.files(folder.name) if each.endswith("/drifts.parquet"))
    )
    kept = world.read(name)
    edited = json.loads(kept) if file == "plan.json" else None
    if edited is not None:
        edited["decided"]["settle"] = 1.0
    world.write(
        name,
        json.dumps(edited).encode() if edited is not None else kept[:-1] + bytes([kept[-1] ^ 1]),
    )
    try:
        with pytest.raises(PlanRefused, match="changed"):
            james.steps(request, "apply")
    finally:
        world.write(name, kept)
    assert james.counters(mailbox) == (3, 2)


def test_a_file_of_the_plan_that_is_gone_is_refused(james, drifted):
    _, request, folder = drifted
    name = next(
        each for each in folder.artifacts.files(folder.name) if each.endswith("/drifts.parquet")
    )
    kept = folder.artifacts.read(name)
    folder.artifacts.remove(name)
    try:
        with pytest.raises(PlanRefused, match="was changed or removed"):
            james.steps(request, "apply")
    finally:
        folder.artifacts.write(name, kept)


def test_a_plan_of_yesterday_or_one_that_passed_no_gate_is_refused(james, drifted):
    _, request, folder = drifted
    with pytest.raises(PlanRefused, match="h old"):
        james.steps(request, "apply", clock=lambda: system_clock() + timedelta(hours=25))
    kept = folder.read_json("check.json")
    folder.write_json("check.json", {**kept, "planDigest": "other"})
    with pytest.raises(PlanRefused, match="the gate did not pass this plan"):
        james.steps(request, "apply")
    folder.write_json("check.json", kept)


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_plan_by_a_clock_that_is_off_is_refused(james, ahead):
    """What is newer than the plan would be judged, or settled before its time."""
    request = james.request(mailboxes=[str(james.mailbox(messages=2, add=(1, 0)))])
    with pytest.raises(ClockSkew):
        james.steps(request, "plan", clock=lambda: system_clock() + ahead)


@pytest.mark.parametrize("step", ["plan", "apply"])
def test_a_clock_that_would_shorten_the_wait_between_the_reads_is_refused(james, step):
    mailboxes = [str(james.mailbox(messages=2, add=(1, 0)))]
    request = james.request(mailboxes=mailboxes, settle="8s")
    if step == "apply":
        james.steps(request, "plan", "check")
    with pytest.raises(ClockSkew, match="a quarter of the settle 8s"):
        james.steps(request, step, clock=lambda: system_clock() + timedelta(seconds=3))


def test_a_file_with_fewer_drifts_than_were_planned_fails_the_gate(james):
    mailboxes = [str(james.mailbox(messages=2, add=(1, 0))) for _ in range(2)]
    request = james.request(mailboxes=mailboxes)
    james.steps(request, "plan")
    folder = RunFolder(artifacts(james.settings), request.duty, request.queue, request.run)
    (path,) = Path(folder.uri).rglob("drifts.parquet")
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    with pytest.raises(GateFailed, match="as many rows as were planned"):
        james.steps(request, "check")


def test_a_second_run_is_refused_while_the_first_works(james, drifted, monkeypatch):
    from mailslice.maintenance import lock

    monkeypatch.setattr(CounterRepair, "lock_patience", timedelta(0))
    with (
        lock.locked(james.stores.own.locks, "counter_repair/-", "another"),
        pytest.raises(LockHeld, match="is locked by run another"),
    ):
        james.steps(drifted[1], "apply")
    assert james.counters(drifted[0]) == (3, 2)


def test_a_range_that_was_not_read_stops_at_the_gate(james, monkeypatch):
    mailbox = james.mailbox(messages=2, add=(1, 0))
    request = james.request(mailboxes=[str(mailbox)])
    monkeypatch.setattr(survey, "token_ranges", lambda *_: [(LOWEST, 0), (5, HIGHEST)])
    james.steps(request, "plan")
    with pytest.raises(GateFailed, match="tile the ring"):
        james.steps(request, "check")
    with pytest.raises(PlanRefused, match=r"has no check\.json"):
        james.steps(request, "apply")
    assert james.counters(mailbox) == (3, 2)


def test_a_scan_that_fails_in_one_range_ends_the_plan_and_changes_nothing(james, monkeypatch):
    mailbox = james.mailbox(messages=2, add=(1, 0))
    request = james.request(mailboxes=[str(mailbox)])
    pages = PackedReader.pages

    def fails_late(self, statement, params, in_flight):
        for number, found in enumerate(pages(self, statement, params, in_flight)):
            if "imapuidtable" in statement.query_string and number == 5:
                raise StoreUnavailable("Cassandra at x does not answer")
            yield found

    with monkeypatch.context() as patch:
        patch.setattr(PackedReader, "pages", fails_late)
        with pytest.raises(StoreUnavailable):
            james.steps(request, "plan")
    with pytest.raises(PlanRefused, match=r"has no plan\.json"):
        james.steps(request, "apply")
    assert james.counters(mailbox) == (3, 2)


def test_mailboxes_and_users_hold_a_run_to_these(james):
    name = f"{timeuuid()}@example.com"
    ours, theirs = (
        james.mailbox(name, messages=1, add=(1, 0)),
        james.mailbox("bob@example.com", messages=1, add=(1, 0)),
    )
    report = james.run(users=[name.upper()])
    assert (report["processedMailboxes"], report["wrong"], report["applied"]) == (1, 1, 1)
    assert (james.counters(ours), james.counters(theirs)) == ((1, 1), (2, 1))
    report = james.run(users=[name], mailboxes=f"{theirs},{timeuuid()}")
    assert (report["processedMailboxes"], report["wrong"], report["applied"]) == (2, 1, 1)
    report = james.run(users=["nobody@example.com", name])
    assert report["processedMailboxes"] == 1
    assert "1 of the given mailboxes and users are not there" in report["message"]


def test_trust_projection_counts_the_projection_and_reads_no_truth(james):
    mailbox = james.mailbox(messages=2, add=(3, 3))
    james.message(mailbox, 8, tables=("messageidtable",))
    report = james.run(mailboxes=[str(mailbox)], trust_projection=True)
    assert (report["applied"], report["inconsistencies"]) == (
        1,
        {"withoutMessageId": 0, "mailboxGone": 0, "counterOfGoneMailbox": 0},
    )
    assert james.counters(mailbox) == (3, 3)


def test_trust_projection_counts_no_row_without_a_message_id(james):
    mailbox = james.mailbox(messages=2, add=(1, 1))
    messages = james.run(mailboxes=[str(mailbox)], trust_projection=True, dry_run=True)["messages"]
    james.late_flags(mailbox, 9)
    report = james.run(mailboxes=[str(mailbox)], trust_projection=True)
    assert report["messages"] == messages
    assert (report["wrong"], report["applied"], report["failedMailboxes"]) == (1, 1, 0)
    assert report["inconsistencies"] == {
        "withoutMessageId": 1,
        "mailboxGone": 0,
        "counterOfGoneMailbox": 0,
    }
    assert james.counters(mailbox) == (2, 2)


@pytest.mark.parametrize("key", ["scan", "drifts"])
def test_what_the_gate_judges_cannot_be_edited(james, drifted, key):
    _, request, folder = drifted
    kept = folder.read_json("plan.json")
    decided = dict(kept["decided"])
    folder.write_json("plan.json", {**kept, "decided": {**decided, key: {**decided[key], "x": 1}}})
    try:
        with pytest.raises(PlanRefused):
            james.steps(request, "check")
        read = {**decided["scan"], "read": 0}
        folder.write_json("plan.json", {**kept, "decided": {**decided, "scan": read}})
        with pytest.raises(PlanRefused, match="was changed"):
            james.steps(request, "check")
    finally:
        folder.write_json("plan.json", kept)
        james.steps(request, "check")


def test_a_share_of_all_counters_that_is_too_large_is_not_corrected(make_fresh):
    settings = make_fresh().settings
    with open_stores(settings) as stores:
        create_mailbox_tables(stores)
        james = Mailboxes(settings, stores)
        wrong = [james.mailbox(messages=1, add=(1, 0)) for _ in range(21)]
        with pytest.raises(GateFailed, match=r"At most 0\.2 of all mailboxes"):
            james.run()
        assert {james.counters(each) for each in wrong} == {(2, 1)}
        assert james.run(mailboxes=[str(each) for each in wrong], dry_run=True)["wrong"] == 21
        assert james.run(max_share=1)["applied"] == 21


def test_a_plan_that_is_no_json_any_more_is_refused_by_its_name(james, drifted):
    _, request, folder = drifted
    kept = folder.artifacts.read(folder.file("plan.json"))
    folder.artifacts.write(folder.file("plan.json"), kept[:-40])
    try:
        for step in ("check", "apply", "report"):
            with pytest.raises(PlanRefused, match=r"plan\.json is no JSON"):
                james.steps(request, step)
    finally:
        folder.artifacts.write(folder.file("plan.json"), kept)


def test_far_more_mailboxes_than_usual_wait_for_a_person(make_fresh, monkeypatch):
    monkeypatch.setattr(gates, "MANY", 1)
    settings = make_fresh().settings
    with open_stores(settings) as stores:
        create_mailbox_tables(stores)
        james = Mailboxes(settings, stores)
        for _ in range(3):
            james.mailbox(add=(1, 1))
            assert james.run()["applied"] == 1
        mailboxes = [james.mailbox(add=(1, 1)) for _ in range(11)]
        named = {"mailboxes": [str(mailbox) for mailbox in mailboxes]}
        with pytest.raises(GateFailed, match="at most 10 times what the last runs did"):
            james.run(**named)
        assert {james.counters(mailbox) for mailbox in mailboxes} == {(1, 1)}
        with pytest.raises(BadInput, match="unusual needs a reason"):
            james.run(**named, unusual=True)
        report = james.run(**named, unusual=True, reason="a counter table was restored")
        assert (report["status"], report["applied"]) == ("done", 11)
        assert {james.counters(mailbox) for mailbox in mailboxes} == {(0, 0)}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"mailboxes": ["x"]}, "'x' is not the id of a mailbox"),
        ({"trust_projection": True, "repair_projection": True}, "only one of the two"),
        ({"settle": "soon"}, "settle='soon'"),
        ({"settle": "0s"}, "settle='0s': allowed: more than 0s"),
        ({"unusual": True}, "unusual needs a reason"),
        ({"mailboxes": ","}, "mailboxes=',': it names nothing"),
        ({"users": [" , "]}, "it names nothing"),
        ({"settle": "999999d"}, "at most"),
        ({"queue": "spool"}, "queue is not a param"),
    ],
)
def test_params_that_make_no_sense_are_refused_by_name(james, params, message):
    with pytest.raises(BadInput, match=message):
        james.run(**params)
