"""What a person decides about a mail in quarantine is kept once it is done."""

from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from mailslice.actions import perform
from mailslice.actions.perform import Context, StuckMailDecision
from mailslice.actions.preview import Selection
from mailslice.actions.request import ActionRequest
from mailslice.admin.quarantine import Quarantine
from mailslice.maintenance import runner
from mailslice.maintenance.artifacts import folder_of
from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.model.mail import EnqueueId
from mailslice.model.settings import load_settings
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.worker import retries

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
NEW_ID = uuid4()


class Quarantined:
    """A quarantine from which the mail is gone, or not."""

    def __init__(self, is_there: bool) -> None:
        self.is_there = is_there
        self.kept: list[tuple[object, ...]] = []

    def discard(self, _mail: object, record) -> bool:
        if self.is_there:
            record()
        return self.is_there

    def release(self, _mail: object, record) -> object:
        record(NEW_ID)
        return NEW_ID

    def record_person(self, _mail: object, *decided: str) -> None:
        self.kept.append(decided)


@pytest.mark.parametrize(
    ("discards", "is_there", "answer", "actions"),
    [
        (True, True, True, ["discarded"]),
        (True, False, False, []),
        (False, True, NEW_ID, ["released"]),
    ],
)
def test_a_decision_is_kept_of_a_mail_that_was_still_there(discards, is_there, answer, actions):
    quarantine = Quarantined(is_there)
    decision = StuckMailDecision(quarantine, discards, "by hand", "ada")
    assert decision.apply(SimpleNamespace()) == answer
    now = f"; it is {NEW_ID} now"
    assert quarantine.kept == [
        (action, "by hand" + (now if action == "released" else ""), "ada") for action in actions
    ]


ONE, TWO = (EnqueueId(UUID(int=number)) for number in (1, 2))


class LastRow:
    """A quarantine table with one row: its mail is released already, and nothing is forgotten."""

    def __init__(self, state=State.RELEASED):
        names = {"enqueue_id": ONE, "attempt": 1, "copy_id": "d/c", "released_as": NEW_ID}
        self.row = SimpleNamespace(state=state, **names)

    def get(self, *_):
        return self.row

    def move(self, _queue, mail, state):
        self.row = SimpleNamespace(**vars(mail) | {"state": state})
        return self.row

    def remove(self, *_):
        self.row = None


class Recording(Quarantine):
    """A quarantine whose store does not answer to the first decision."""

    answers = False

    def record_person(self, _mail, *decided):
        self.recorded = decided
        if not self.answers:
            raise StoreUnavailable("no answer")


def test_a_release_that_could_not_be_recorded_is_kept_until_it_is():
    locks = SimpleNamespace(acquire=lambda _, me, __: me, release=lambda *_: None)
    blobs = SimpleNamespace(delete_many=lambda _: {})
    stores = SimpleNamespace(own=SimpleNamespace(locks=locks), own_blobs=blobs)
    table = LastRow()
    releases = Recording(stores, "spool", lambda: NOW, table=table)
    decision, mail = StuckMailDecision(releases, False, "by hand", "ada"), table.row
    with pytest.raises(StoreUnavailable):
        decision.apply(mail)
    assert table.row is mail
    releases.answers = True
    assert (decision.apply(mail), table.row) == (NEW_ID, None)
    assert releases.recorded == ("released", f"by hand; it is {NEW_ID} now", "ada")


def test_a_discard_that_could_not_be_recorded_removes_nothing_until_it_is():
    blobs, removed = SimpleNamespace(), []
    blobs.delete_many = lambda keys: removed.extend(keys) or {}
    table = LastRow(State.KEPT)
    quarantine = Recording(SimpleNamespace(own_blobs=blobs), "spool", lambda: NOW, table=table)
    decision = StuckMailDecision(quarantine, True, "by hand", "ada")
    with pytest.raises(StoreUnavailable):
        decision.apply(table.row)
    assert (table.row.state, removed) == (State.DISCARDING, [])
    quarantine.answers = True
    assert (decision.apply(table.row), table.row, len(removed)) == (True, None, 2)
    assert quarantine.recorded == ("discarded", "by hand", "ada")


class Rows:
    """A quarantine by row; `taken`: what was released or discarded. `late` is gone meanwhile."""

    def __init__(self, *rows, late=()):
        self.rows, self.late, self.taken = rows, late, []

    def __call__(self, *_):
        return self

    def waiting(self):
        return [SimpleNamespace(enqueue_id=id_, attempt=attempt) for id_, attempt in self.rows]

    def release(self, mail, _record):
        self.taken.append((mail.enqueue_id, mail.attempt))
        return NEW_ID

    def discard(self, mail, _record):
        if (mail.enqueue_id, mail.attempt) in self.late:
            return False
        self.taken.append((mail.enqueue_id, mail.attempt))
        return True

    def record_person(self, *_):
        pass


@pytest.fixture
def settings(tmp_path):
    return load_settings({"MAILSLICE_ARTIFACTS": str(tmp_path / "a")}, state_file=tmp_path / "none")


@pytest.fixture
def decide(monkeypatch, settings):
    """Does the action on a quarantine; its result, and the facts of its decision."""
    monkeypatch.setattr(perform.queues, "require", lambda *_: None)
    monkeypatch.setattr(
        perform, "ConfigurationGuard", lambda *_: SimpleNamespace(ensure=lambda: None)
    )
    kept = []
    monkeypatch.setattr(perform, "write_decision", lambda *_, facts, **__: kept.append(facts))
    stores = SimpleNamespace(settings=settings, tables=None)

    def decide(rows, action, *ids, selected=None):
        monkeypatch.setattr(perform, "Quarantine", rows)
        request = ActionRequest.of({"queue": "spool", "action": action, "ids": ids or None})
        kept_selection = Selection(request, NOW, selected, before=NOW).as_json()
        context = Context(who="ada", run="r")
        result = perform.perform(stores, Selection.of(kept_selection), context, lambda: NOW)
        return result, kept[-1]

    return decide


@pytest.mark.parametrize("bad", ["queue_audit", "republish_lost"])
def test_a_republish_whose_audit_or_run_failed_has_failed(decide, monkeypatch, bad):
    def run_all(run, *_, **__):
        status = "failed" if run.duty == bad else "done"
        report = {"run": run.run, "status": status, "message": f"{run.duty} {status}"}
        return {**report, "nbRequeuedMails": 2, "verdicts": {}}

    monkeypatch.setattr(runner, "run_all", run_all)
    result, _ = decide(Rows(), "republish")
    assert (result["republished"], result["failed"]) == (2, f"{bad} failed")


def test_a_republish_that_is_tried_again_counts_what_its_first_try_published(
    decide, settings, monkeypatch
):
    tries = []

    def run_all(run, *_, **__):
        report = {"run": run.run, "status": "done", "verdicts": {}}
        if run.duty == "queue_audit":
            return report
        folder = folder_of(run, settings)
        tries.append(run.run)
        if len(tries) == 1:
            folder.write_json("progress.json", {"planned": 5, "applied": 3, "remaining": 2})
            raise StoreUnavailable("RabbitMQ is away")
        folder.artifacts.remove(folder.file("progress.json"))  # as a plan does
        return {**report, "nbRequeuedMails": 2}

    monkeypatch.setattr(runner, "run_all", run_all)
    with pytest.raises(StoreUnavailable):
        decide(Rows(), "republish")
    result, _ = decide(Rows(), "republish")
    assert (result["republished"], tries) == (5, ["r", "r"])


@pytest.mark.parametrize(
    ("action", "count"), [("release_stuck", "released"), ("discard_stuck", "discarded")]
)
def test_of_a_mail_that_is_set_aside_twice_the_named_row_is_decided_on(decide, action, count):
    rows = Rows((ONE, 1), (ONE, 2), (TWO, 1))
    result, facts = decide(rows, action, f"{ONE}/2")
    assert rows.taken == [(ONE, 2)]
    assert (result[count], result["gone"], result["failed"]) == (1, 0, None)
    assert list(facts["ids"]) == [f"{ONE}/2"]
    assert facts["filter"] == {"ids": [str(ONE)], "idCount": 1}


def test_a_mail_that_is_set_aside_once_is_named_by_its_id_too(decide):
    rows = Rows((ONE, 3), (TWO, 1))
    result, facts = decide(rows, "release_stuck", str(ONE), f"{ONE}/3")
    assert rows.taken == [(ONE, 3)]
    assert (result["released"], result["gone"]) == (1, 0)
    assert facts["ids"] == {f"{ONE}/3": str(NEW_ID)}


def test_an_id_that_is_set_aside_several_times_is_refused_and_nothing_is_done(decide):
    rows = Rows((ONE, 1), (ONE, 2), (TWO, 1))
    with pytest.raises(Refused, match=f"2 times; name one: {ONE}/1, {ONE}/2"):
        decide(rows, "discard_stuck", str(ONE), str(TWO))
    assert rows.taken == []


def test_rows_that_are_gone_are_counted_one_by_one(decide):
    rows = Rows((ONE, 1), (TWO, 1), late=[(TWO, 1)])
    result, _ = decide(rows, "discard_stuck", *(f"{ONE}/{n}" for n in (1, 2, 3)), str(TWO))
    assert (result["discarded"], result["gone"]) == (1, 3)


def test_a_flush_delivers_every_delayed_mail_and_of_a_preview_it_is_a_retry(decide, monkeypatch):
    async def flush(_settings, _queue, record):
        record(2)
        return 2

    async def retry(_settings, _queue, wanted, outcome, *, dry_run):
        assert (wanted.ids, dry_run) == ({ONE}, False)
        outcome.retried.append(ONE)
        outcome.overdue = 1
        return 0

    monkeypatch.setattr(retries, "flush", flush)
    monkeypatch.setattr(retries, "retry", retry)
    result, facts = decide(None, "flush")
    assert (result["flushed"], result["retried"], result["failed"]) == (2, 2, None)
    assert facts["flushed"] == 2
    result, _ = decide(None, "flush", selected=(ONE,))
    assert (result["retried"], result["overdue"]) == (1, 1)
    assert "1 mails are overdue" in result["failed"]
