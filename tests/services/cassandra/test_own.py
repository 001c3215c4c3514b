"""mailslice's own tables."""

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.mail import Partition
from mailslice.stores import open_stores
from mailslice.stores.cassandra.ddl import replication_of
from mailslice.stores.cassandra.own import (
    TABLES,
    DeadLetterNote,
    DelayedMail,
    OwnTables,
    QueueSample,
    SliceStatistic,
)
from mailslice.stores.own.runs import RUNS, RunRow
from tests.contracts.own_records import OwnRecordsContract
from tests.contracts.tables import some_queue

pytestmark = pytest.mark.new_keyspaces

NOW = datetime(2026, 11, 20, 12, 30, 1, 234000, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
_SERVERS = itertools.count(1)


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as stores:
        yield stores


@pytest.fixture
def own(stores):
    return stores.own


@pytest.fixture
def queue():
    return some_queue()


class TestRecords(OwnRecordsContract):
    @pytest.fixture
    def name(self, queue):
        return queue

    @pytest.fixture
    def server(self):
        return next(_SERVERS)


def test_a_run_is_written_over_by_a_machine_whose_clock_is_behind(stores, own, queue):
    clock = stores.cassandra.cluster.timestamp_generator
    row = RunRow("r1", "queue_size", queue, NOW, "running", report='{"n": 1}')
    with clock.pinned(clock() + 60_000_000):
        own.runs.save(row, DAY)
    done = replace(row, status="done", report="{}", finished=NOW + MINUTE)
    own.runs.save(done, DAY)
    assert own.runs.list("queue_size", queue) == [done]
    own.runs.save(replace(row, who="night shift"), DAY)
    assert own.runs.list("queue_size", queue) == [replace(row, who="night shift")]


def delayed(**changes):
    mail = DelayedMail(
        uuid4(),
        NOW,
        uuid4(),
        published=False,
        partition=Partition(NOW.replace(microsecond=0), 3),
        message=b"\x00{}",
    )
    return replace(mail, **changes)


def test_a_delayed_mail_is_read_as_it_was_written(own, queue):
    for mail in (delayed(), delayed(partition=None)):
        own.delayed_mails.write_future(queue, mail).result()
        found = own.delayed_mails.get(queue, mail.enqueue_id)
        assert replace(found, written_us=0) == mail
        assert (
            own.delayed_mails.row(
                own.delayed_mails.read_future(queue, mail.enqueue_id).result().one()
            )
            == found
        )
    assert own.delayed_mails.get(queue, uuid4()) is None
    assert own.delayed_mails.get(some_queue(), mail.enqueue_id) is None


def test_the_next_step_of_a_slow_clock_is_not_lost(own, queue):
    ahead = 1_000_000 * 3600
    first = delayed(written_us=int(datetime.now(UTC).timestamp() * 1e6) + ahead)
    own.delayed_mails.write_future(queue, first).result()
    read = own.delayed_mails.get(queue, first.enqueue_id)
    second = replace(read, token=uuid4())
    own.delayed_mails.write_future(queue, second).result()
    assert own.delayed_mails.get(queue, first.enqueue_id).token == second.token
    own.delayed_mails.close_future(
        queue, first.enqueue_id, second.token, read.written_us + 1
    ).result()
    assert own.delayed_mails.get(queue, first.enqueue_id).published


def test_a_closed_mail_is_remembered_without_its_message(own, queue):
    mail = delayed()
    own.delayed_mails.write_future(queue, mail).result()
    own.delayed_mails.close(
        queue,
        mail.enqueue_id,
        mail.token,
        own.delayed_mails.get(queue, mail.enqueue_id).written_us,
    )
    found = own.delayed_mails.get(queue, mail.enqueue_id)
    assert (found.published, found.message, found.due, found.token) == (True, b"", None, mail.token)


def test_all_delayed_mails_of_a_queue_are_listed(own, queue):
    mails = [delayed() for _ in range(60)]
    for mail in mails:
        own.delayed_mails.write_future(queue, mail).result()
    found = sorted(mail.enqueue_id for mail in own.delayed_mails.rows(queue))
    assert found == sorted(mail.enqueue_id for mail in mails)


def test_an_older_sample_never_replaces_a_newer(own, queue):
    assert own.queue_samples.get(queue) is None
    newer, older = (
        QueueSample(NOW, NOW + timedelta(seconds=15)),
        QueueSample(NOW - DAY, NOW - DAY + timedelta(seconds=15)),
    )
    own.queue_samples.save(queue, newer)
    own.queue_samples.save(queue, older)
    # Of two runs that overlap: one began earlier, and looked again later.
    own.queue_samples.save(queue, QueueSample(NOW - MINUTE, NOW + MINUTE))
    assert own.queue_samples.get(queue) == newer


def test_slice_statistics_are_kept_by_time(own, queue):
    first, second = (
        SliceStatistic(NOW, 1, 9_999, NOW + DAY, (uuid4(),)),
        SliceStatistic(NOW + DAY, 0, 0, NOW + DAY),
    )
    own.slice_statistics.save(queue, second)
    own.slice_statistics.save(queue, first)
    assert list(own.slice_statistics.list(queue)) == [first, second]
    own.slice_statistics.delete_before(queue, second.slice_start)
    assert list(own.slice_statistics.list(queue)) == [second]


def test_the_rounds_of_dead_letters_are_kept(own, queue):
    one, two, three = uuid4(), uuid4(), uuid4()
    assert own.dead_letter_notes.by_ids(queue, []) == {}
    own.dead_letter_notes.count_redrive(queue, one, 1, NOW)
    own.dead_letter_notes.count_redrive(queue, two, 2, NOW)
    assert own.dead_letter_notes.by_ids(queue, [one, two, three, one]) == {
        one: DeadLetterNote(1, NOW),
        two: DeadLetterNote(2, NOW),
    }
    assert own.dead_letter_notes.by_ids(some_queue(), [one]) == {}
    many = [uuid4() for _ in range(250)]
    for each in many:
        own.dead_letter_notes.count_redrive(queue, each, 1, NOW)
    assert set(own.dead_letter_notes.by_ids(queue, many)) == set(many)


def test_a_missing_own_keyspace_is_created_as_james_is_replicated(stores, fresh_module):
    name = fresh_module.settings.own.keyspace + "_x"
    settings = fresh_module.but(MAILSLICE_OWN_KEYSPACE=name).settings
    try:
        OwnTables(stores.cassandra, settings).locks.acquire("l", "a", MINUTE)
        assert replication_of(stores.cassandra, name) == replication_of(
            stores.cassandra, settings.cassandra.keyspace
        )
    finally:
        stores.cassandra.execute(f"DROP KEYSPACE IF EXISTS {name}")


def test_a_table_that_is_missing_is_looked_for_until_it_is_there(fresh):
    with open_stores(fresh.settings) as stores, open_stores(fresh.settings) as others:
        assert stores.existing_runs() is None
        others.own.runs.save(RunRow("r", "queue_size", "spool", NOW, "done"), DAY)
        assert [row.run for row in stores.existing_runs().list("queue_size", "spool", 1)] == ["r"]
        assert stores.existing_records(RUNS) is stores.existing_records(RUNS)


def test_james_keyspace_is_never_taken_for_our_own(stores, fresh_module):
    same = fresh_module.settings.cassandra.keyspace.upper()
    with pytest.raises(BadSetting, match=f"MAILSLICE_OWN_KEYSPACE={same} is James' keyspace"):
        OwnTables(stores.cassandra, fresh_module.but(MAILSLICE_OWN_KEYSPACE=same).settings)


def _columns(session, keyspace):
    query = session.prepare(
        "SELECT table_name, column_name, type FROM system_schema.columns WHERE keyspace_name = ?"
    )
    found = {}
    for table, column, kind in session.execute(query, [keyspace]):
        found.setdefault(table, {})[column] = kind
    return found


def test_tables_of_an_earlier_version_get_their_new_columns_from_many_workers_at_once(fresh_module):
    """Each table lost what it can lose: afterwards it is as made today, its row still there."""
    keyspace = fresh_module.settings.own.keyspace + "_old"
    settings = fresh_module.but(MAILSLICE_OWN_KEYSPACE=keyspace).settings
    with open_stores(fresh_module.settings) as stores:
        session = stores.cassandra
        wanted = {
            name: TABLES[name].COLUMNS for name in ("worker_records", "quarantine", "delayed_mails")
        }
        replication = replication_of(session, fresh_module.settings.own.keyspace)
        session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
        try:
            for name in wanted:
                old = re.sub(
                    r"(settled|completed|finished|voided|message) [^ ,]+(<[^ ]+, [^ ]+>)?, ",
                    "",
                    TABLES[name].declaration(),
                )
                session.execute(f"CREATE TABLE {keyspace}.{name} {old}")
            session.execute(
                f"INSERT INTO {keyspace}.worker_records "
                "(queuename, worker, host, pid, started, beat, every_ms) "
                "VALUES ('q', 'w', 'h', 7, 0, 3, 9)"
            )
            assert (
                _columns(session, keyspace)["worker_records"].keys()
                < wanted["worker_records"].keys()
            )
            with ThreadPoolExecutor(4) as workers, ExitStack() as opened:
                sessions = [opened.enter_context(open_stores(settings)).cassandra for _ in range(4)]
                for own in workers.map(lambda each: OwnTables(each, settings), sessions):
                    assert own.worker_records.list("q")[0].pid == 7
            now = _columns(session, keyspace)
            assert now.keys() == TABLES.keys()
            for name, table in TABLES.items():
                assert now[name] == table.COLUMNS, name
        finally:
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")


def test_a_table_with_another_key_is_not_touched(fresh_module):
    keyspace = fresh_module.settings.own.keyspace + "_key"
    settings = fresh_module.but(MAILSLICE_OWN_KEYSPACE=keyspace).settings
    with open_stores(fresh_module.settings) as stores:
        replication = replication_of(stores.cassandra, fresh_module.settings.own.keyspace)
        stores.cassandra.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
        try:
            stores.cassandra.execute(f"CREATE TABLE {keyspace}.locks (id int PRIMARY KEY)")
            with pytest.raises(BadSetting, match="locks has no column name, a part of its key"):
                OwnTables(stores.cassandra, settings)
            assert _columns(stores.cassandra, keyspace)["locks"].keys() == {"id"}
        finally:
            stores.cassandra.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")


def test_a_gc_grace_that_repairs_cannot_keep_up_with_is_raised_and_a_longer_one_is_left(fresh):
    keyspace = fresh.settings.own.keyspace
    with open_stores(fresh.settings) as stores:
        session = stores.cassandra
        OwnTables(session, fresh.settings)
        for table, seconds in (("quarantine", 86_400), ("decisions", 900_000)):
            session.execute(f"ALTER TABLE {keyspace}.{table} WITH gc_grace_seconds = {seconds}")
        OwnTables(session, fresh.settings)
        rows = session.execute(
            "SELECT table_name, gc_grace_seconds FROM system_schema.tables "
            f"WHERE keyspace_name = '{keyspace}'"
        )
    grace = dict(rows)
    assert (grace["quarantine"], grace["decisions"], grace["locks"]) == (864_000, 900_000, 86_400)
