"""What a person decides about a mail in quarantine is kept once it is done."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from mailslice.actions import perform
from mailslice.actions.perform import Context, StuckMailDecision
from mailslice.actions.preview import Selection
from mailslice.actions.request import ActionRequest
from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.maintenance import runner
from mailslice.maintenance.artifacts import folder_of
from mailslice.model.errors import Refused, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail
from mailslice.model.settings import load_settings
from mailslice.stores.cassandra.own.decisions import BY_A_PERSON
from mailslice.stores.cassandra.own.quarantine import State
from mailslice.worker import retries

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
NEW_ID = uuid4()


ONE, TWO = (EnqueueId(UUID(int=number)) for number in (1, 2))


class LastRow:
    """A quarantine table with one row. Nothing else changes it."""

    def __init__(self, state=State.KEPT, **fields):
        names = {"name": "mail-1", "stage": "loaded", "worker": "w", "age": timedelta(hours=1)}
        names |= {"enqueue_id": ONE, "attempt": 1, "copy_id": "d/c", "released_as": NEW_ID}
        names |= {"action": "closed", "why": "held", "who": "airflow", "run": "r", "decided": NOW}
        self.row = SimpleNamespace(**names | {"state": state} | fields)

    def get(self, *_):
        return self.row

    def move(self, _queue, mail, **changes):
        self.row = SimpleNamespace(**vars(mail) | changes) if self.row else None
        return self.row

    def add(self, *_):
        raise LookupError("the row is gone, and a new one would be written")

    def remove(self, *_):
        self.row = None


class Decisions:
    """Does not answer to the first decision."""

    answers = False

    def __init__(self):
        self.written = {}

    def save(self, _queue, row, _retention):
        if not self.answers:
            raise StoreUnavailable("no answer")
        self.written[row.decided, row.enqueue_id, row.action] = row

    @property
    def rows(self):
        return [(row.action, row.why, row.who, row.verdict) for row in self.written.values()]


@pytest.fixture
def world(settings):
    """A quarantine with one mail, the decisions, the keys of objects that were removed."""

    def world(table):
        removed, decisions, clock = [], Decisions(), iter(NOW + timedelta(n) for n in range(1, 99))
        blobs = SimpleNamespace(
            delete_many=lambda keys: removed.extend(keys) or {}, ensure_bucket=lambda: None
        )
        locks = SimpleNamespace(
            acquire=lambda _, me, __: me, release=lambda *_: None, first=lambda *_: "d"
        )
        own = SimpleNamespace(locks=locks, decisions=decisions)
        stores = SimpleNamespace(own=own, own_blobs=blobs, settings=settings)
        return Quarantine(stores, "spool", lambda: next(clock), table=table), decisions, removed

    return world


BY_ADA = ("discarded", "by hand", "ada", BY_A_PERSON)
ITEM = QueuedMail(ONE, Mail("mail-1", None, ("bob@example.net",)), BlobId("h"), BlobId("b"))


@pytest.mark.parametrize("who_ends_it", ["the person", "a duty", "a worker"])
def test_a_discard_that_could_not_be_recorded_removes_nothing_until_it_is(world, who_ends_it):
    """Also if a duty, or a worker that quarantines the mail again, finishes what was cut off."""
    table = LastRow()
    quarantine, decisions, removed = world(table)
    decision = StuckMailDecision(quarantine, True, "by hand", "ada")
    with pytest.raises(StoreUnavailable):
        decision.apply(table.row)
    assert (table.row.state, removed) == (State.DISCARDING, [])

    def end():
        if who_ends_it == "the person":
            assert decision.apply(table.row)
        elif who_ends_it == "a duty":
            assert quarantine.tidy(table.row)
        else:
            held = Holder("w", "loaded", NOW, timedelta(hours=1))
            with pytest.raises(LookupError):
                quarantine.keep(ITEM, held, Decided("failed", "in doubt", "w"), State.KEPT)

    with pytest.raises(StoreUnavailable):
        end()
    assert (table.row.state, removed) == (State.DISCARDING, [])
    decisions.answers = True
    end()
    assert (table.row, len(removed), decisions.rows) == (None, 2, [BY_ADA])
    assert [row.decided > NOW for row in decisions.written.values()] == [True]


def test_a_release_that_could_not_be_recorded_is_kept_until_it_is(world):
    table = LastRow(State.RELEASED, run=BY_A_PERSON, action="released", why="x; it is y now")
    quarantine, decisions, removed = world(table)
    decision, mail = StuckMailDecision(quarantine, False, "by hand", "ada"), table.row
    for end in (decision.apply, quarantine.tidy):
        with pytest.raises(StoreUnavailable):
            end(mail)
        assert (table.row, removed) == (mail, [])
    decisions.answers = True
    assert (decision.apply(mail), table.row) == (NEW_ID, None)
    assert decisions.rows == [("released", "x; it is y now", "airflow", BY_A_PERSON)]


def test_a_discard_of_a_mail_that_is_gone_or_was_withdrawn(world):
    table = LastRow()
    quarantine, decisions, _ = world(table)
    decisions.answers = True
    mail, table.row = table.row, None
    decision = StuckMailDecision(quarantine, True, "by hand", "ada")
    assert (decision.apply(mail), decisions.rows) == (False, [])
    table.row = LastRow(State.DISCARDING).row  # of a duty, which was killed
    assert (decision.apply(table.row), decisions.rows) == (True, [BY_ADA])
    table.row = LastRow(State.CLOSING).row
    assert quarantine.withdraw(table.row)
    assert (table.row, decisions.rows) == (None, [BY_ADA])


class Rows:
    """A quarantine by row; `taken`: what was released or discarded. `late` is gone meanwhile."""

    def __init__(self, *rows, late=()):
        self.rows, self.late, self.taken = rows, late, []

    def __call__(self, *_):
        return self

    def waiting(self):
        return [SimpleNamespace(enqueue_id=id_, attempt=attempt) for id_, attempt in self.rows]

    def release(self, mail, _why, _who):
        self.taken.append((mail.enqueue_id, mail.attempt))
        return NEW_ID

    def discard(self, mail, _why, _who):
        if (mail.enqueue_id, mail.attempt) in self.late:
            return False
        self.taken.append((mail.enqueue_id, mail.attempt))
        return True


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
