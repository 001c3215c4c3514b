"""The five steps over both tables in memory.

What is copied, what is left out, and a kill at each point.
"""

import uuid
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from mailslice.duties.migrate_v3_to_v4 import copier, source
from mailslice.duties.migrate_v3_to_v4.duty import DUTY
from mailslice.duties.migrate_v3_to_v4.params import Params
from mailslice.engine.frames import InProcess
from mailslice.maintenance import gates, runner
from mailslice.maintenance.artifacts import FILES
from mailslice.maintenance.progress import Progress
from mailslice.model import crash
from mailslice.model.errors import GateFailed
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.settings import Settings
from mailslice.model.slices import slice_start
from mailslice.testing.memory import MemoryStores
from tests.killed import Killed
from tests.services.duties.running import judged_plainly
from tests.unit.duties.judging import NOW, QUEUE, Locks, run_of

HOUR = timedelta(hours=1)
ALL = ("plan", "check", "apply", "verify", "report")


class Tables:
    """A queue whose view is in V3, and the steps of its migration.

    Slice 0 is the one of an hour ago.
    """

    def __init__(self, folder):
        self.settings = Settings()
        self.written = int((NOW - 10 * HOUR).timestamp() * 1_000_000)
        existing = (QueueTable.V3, QueueTable.V4)
        self.stores = MemoryStores(self.settings, existing=existing, now_us=lambda: self.written)
        self.stores.rabbitmq.declare(QUEUE)
        self.stores.own = self.stores.records = SimpleNamespace(locks=Locks())
        self.stores.cassandra = SimpleNamespace(require_clock=lambda *_: None)
        self.v3, self.v4 = self.stores.tables.v3, self.stores.tables.v4
        self.folder = folder

    def at(self, number):
        return slice_start(NOW, HOUR) + (number - 1) * HOUR

    def insert(self, number, *, dead=False, bucket=0):
        item = QueuedMail(EnqueueId(uuid.uuid4()), Mail("m", None, ()), BlobId("h"), BlobId("b"))
        row = ViewRow(QUEUE, Partition(self.at(number), bucket), self.at(number), item)
        self.v3.insert_future(row)
        if dead:
            self.stores.tables.deleted.mark_many(QUEUE, [row.enqueue_id])
        return row

    def rows(self, table):
        pages = table.rows_of(QUEUE, table.partitions(QUEUE))
        return {row.enqueue_id for _, page in pages for row in page}

    def take(self, *steps, **params):
        summary = {}
        for step in steps:
            run = run_of(
                self.folder,
                "migrate_v3_to_v4",
                Params(**params),
                settings=self.settings,
                stores=self.stores,
                engine=SimpleNamespace(session=InProcess),
            )
            summary = runner.step_of(DUTY, step)(run)
            run.folder.write_json(FILES[step], {**summary, "step": step})
        return summary


@pytest.fixture
def tables(tmp_path, monkeypatch):
    made = Tables(tmp_path)
    for module in (source, copier):
        monkeypatch.setattr(module, "stores_of", lambda _: made.stores)
    names = {table.cql for table in (QueueTable.V3, QueueTable.V4)}
    made.stores.cassandra.keyspace = ""
    monkeypatch.setattr(source, "tables_of", lambda *_: names)

    def gate(name, frames, docs, *_):
        result = judged_plainly(name, frames, docs)
        failed = [one.column for one in result.findings if not one.success]
        if failed:
            raise GateFailed(", ".join(failed))
        return result

    monkeypatch.setattr(gates, "run_gate", gate)
    return made


def planted(tables):
    """(ids to be copied, all rows).

    Three live ones, a dead one, one behind browseStart, one that no browse reaches.
    """
    tables.stores.tables.browse_starts.insert_first(QUEUE, tables.at(-2))
    live = [tables.insert(number) for number in (-2, 0, 0)]
    tables.insert(0, dead=True)
    tables.insert(-5)
    tables.insert(0, bucket=99)
    return {row.enqueue_id for row in live}, tables.rows(tables.v3)


def test_live_rows_and_they_alone_are_copied_with_their_times_and_counted_once(tables):
    live, before = planted(tables)
    report = tables.take(*ALL)
    counts = {name: report[name] for name in ("planned", "copied", "verified", "failed", "left")}
    assert counts == {"planned": 3, "copied": 3, "verified": 3, "failed": 0, "left": 0}
    assert report["skippedBy"] == {
        "deleted mark": 1,
        "behind browseStart": 1,
        "no slice or bucket of the view": 1,
    }
    assert (report["status"], report["skipped"], report["rows"]) == ("done", 3, 6)
    assert [(one["live"], one["same"], one["v3"] == one["v4"]) for one in report["slices"]] == [
        (1, 1, True),
        (2, 2, True),
    ]
    assert (tables.rows(tables.v4), tables.rows(tables.v3)) == (live, before)
    for partition in tables.v4.partitions(QUEUE):
        times = {row.enqueue_id: row.written_us for row in tables.v3.ids(QUEUE, partition)}
        assert all(
            row.written_us == times[row.enqueue_id] for row in tables.v4.ids(QUEUE, partition)
        )
    again = tables.take(*ALL)
    assert (again["status"], again["copied"], again["verified"]) == ("nothing to do", 0, 3)
    assert again["skippedBy"]["in V4 already"] == 3


@pytest.mark.parametrize(
    "point", ["plan:after-read", "apply:locked", "apply:inside-copies", "apply:after-batch"]
)
@pytest.mark.parametrize("again", ["the same plan", "a new run"])
def test_after_a_kill_the_tables_and_the_counts_are_those_of_an_undisturbed_run(
    tables, monkeypatch, point, again
):
    live, before = planted(tables)
    step = point.partition(":")[0]
    if step == "apply":
        tables.take("plan", "check")

    def kill(name):
        if name == point:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "__exit__", lambda *_: None)
        crash.arm(kill)
        try:
            with pytest.raises(Killed):
                tables.take(step)
        finally:
            crash.arm(None)
    assert tables.rows(tables.v4) <= live
    goes_on = step == "apply" and again == "the same plan"
    report = tables.take(*(ALL[2:] if goes_on else ALL))
    assert (report["verified"], report["failed"], report["missing"]) == (3, 0, 0)
    assert not goes_on or (report["status"], report["copied"]) == ("done", 3)
    assert (tables.rows(tables.v4), tables.rows(tables.v3)) == (live, before)


def test_what_changed_since_the_plan_is_not_copied(tables):
    tables.stores.tables.browse_starts.insert_first(QUEUE, tables.at(-3))
    early, gone, marked, kept = (tables.insert(number) for number in (-3, -1, 0, 1))
    assert tables.take("plan", "check")["planned"] == 4
    tables.stores.tables.deleted.mark_many(QUEUE, [marked.enqueue_id])
    tables.v3.delete_partition_future(QUEUE, gone.partition, 2**60).result()
    tables.stores.tables.browse_starts.write(QUEUE, tables.at(-2), 2**60)
    report = tables.take("apply", "verify", "report")
    assert (report["copied"], report["skippedBy"]) == (
        1,
        {
            "deleted since the plan": 1,
            "left V3 since the plan": 1,
            "behind browseStart since the plan": 1,
        },
    )
    assert tables.rows(tables.v4) == {kept.enqueue_id}
    assert early.enqueue_id in tables.rows(tables.v3)


def test_recipients_that_a_retry_writes_between_read_and_copy_are_copied(tables, monkeypatch):
    """Its worker finds no row in V4 to narrow. The other recipients would be served again."""
    tables.stores.tables.browse_starts.insert_first(QUEUE, tables.at(-2))
    row = tables.insert(0)
    tables.take("plan", "check")
    left = replace(row.item, mail=replace(row.item.mail, recipients=("left@b.example",)))
    first_slice = copier.first_slice

    def retried(*args):
        tables.written += 1
        for table in (tables.v3, tables.v4):
            table.replace_future(replace(row, item=left))
        return first_slice(*args)

    with monkeypatch.context() as patch:
        patch.setattr(copier, "first_slice", retried)
        assert tables.take("apply")["applied"] == 1
    (copy,) = tables.v4.by_ids(QUEUE, [(row.partition, [row.enqueue_id])])
    assert copy.item.mail.recipients == ("left@b.example",)
    report = tables.take("verify", "report")
    assert (report["verified"], report["newer"]) == (1, 0)


def test_a_copy_that_a_later_delete_covers_fails_the_run_and_stays_in_v3(tables):
    tables.stores.tables.browse_starts.insert_first(QUEUE, tables.at(-2))
    row = tables.insert(0)
    tables.v4.delete_partition_future(QUEUE, row.partition, 2**60).result()
    report = tables.take(*ALL)
    assert (report["status"], report["copied"], report["failed"], report["missing"]) == (
        "failed",
        0,
        1,
        1,
    )
    assert "covered by a later delete" in report["message"]


def test_a_copy_that_is_gone_or_holds_something_else_fails_verify(tables):
    tables.stores.tables.browse_starts.insert_first(QUEUE, tables.at(-2))
    row = tables.insert(0)
    tables.take(*ALL[:3])
    (entry,) = tables.v4.written_by_ids(QUEUE, [(row.partition, [row.enqueue_id])])
    mail = replace(row.item.mail, name="other")
    tables.v4.copy_many([(replace(row, item=replace(row.item, mail=mail)), entry[1])])
    with pytest.raises(GateFailed, match="differing"):
        tables.take("verify")
    tables.v4.delete_partition_future(QUEUE, row.partition, 2**60).result()
    with pytest.raises(GateFailed, match="missing"):
        tables.take("verify")


def test_the_time_limit_leaves_the_rest_to_the_next_run(tables):
    live, _ = planted(tables)
    report = tables.take(*ALL, time_limit="0s")
    assert (report["status"], report["copied"], report["left"]) == ("done", 0, 3)
    assert tables.take(*ALL)["copied"] == 3
    assert tables.rows(tables.v4) == live
