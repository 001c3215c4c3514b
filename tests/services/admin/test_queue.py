"""The queue room on real stores."""

import pytest

from mailslice.admin import queues
from mailslice.admin.mail_queue import MailQueue
from mailslice.engine.worker_stores import close_all, stores_of
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadSetting, TopologyDiffers, UnknownQueue
from mailslice.model.names import QueueTable
from mailslice.stores import open_stores
from mailslice.stores.cassandra.ddl import create_queue_tables, queue_tables
from mailslice.view.configuration import ConfigurationGuard
from tests.contracts.guard import GuardContract
from tests.contracts.mail_queue import MailQueueContract
from tests.contracts.making import row
from tests.contracts.tables import some_queue

pytestmark = pytest.mark.new_keyspaces


@pytest.fixture(scope="module")
def both_tables(fresh_module):
    with open_stores(fresh_module.settings) as stores:
        stores.tables.create()
        create_queue_tables(stores.cassandra, queue_tables(QueueTable.V3))
        yield stores


@pytest.fixture
def no_events(both_tables):
    both_tables.cassandra.execute(f"TRUNCATE {both_tables.settings.cassandra.keyspace}.eventstore")
    return both_tables


class TestMailQueueOnCassandra(MailQueueContract):
    @pytest.fixture
    def stores(self, no_events):
        return no_events

    @pytest.fixture
    def queue(self):
        return some_queue()


class TestGuardOnCassandra(GuardContract):
    @pytest.fixture
    def make_guard(self, no_events, fresh_module):
        return lambda **environment: ConfigurationGuard(
            no_events.tables, fresh_module.but(**environment).settings
        )


def test_create_makes_everything_and_twice_is_once(fresh):
    with open_stores(fresh.settings) as stores:
        queues.create(stores, "spool")
        queues.create(stores, "spool")
        assert stores.rabbitmq.names() == ["spool"]
        assert MailQueue(stores, "spool", system_clock).size() == 0
        assert len(ConfigurationGuard(stores.tables, stores.settings).history()) == 1
        with pytest.raises(UnknownQueue, match="known are: spool"):
            queues.require(stores, "other")


def test_a_queue_with_other_arguments_is_refused_and_named(fresh):
    with open_stores(fresh.settings) as stores:
        queues.create(stores, "spool")
    with (
        open_stores(fresh.but(MAILSLICE_QUEUE_QUORUM="true").settings) as stores,
        pytest.raises(TopologyDiffers, match="JamesMailQueue-workqueue-spool"),
    ):
        queues.create(stores, "spool")


def test_a_missing_keyspace_is_named_and_never_created_by_reading(fresh):
    wrong = fresh.but(MAILSLICE_CASSANDRA_KEYSPACE="nosuchkeyspace").settings
    with open_stores(wrong) as stores:
        with pytest.raises(
            BadSetting, match=r"KEYSPACE=nosuchkeyspace: no such keyspace .*; is the name right\?"
        ):
            ConfigurationGuard(stores.tables, wrong).ensure()
        with pytest.raises(BadSetting, match="no such keyspace"):
            MailQueue(stores, "spool", system_clock).size()


def test_the_first_start_creates_missing_tables_as_james_does(fresh):
    with open_stores(fresh.settings) as stores:
        assert set(stores.tables.missing()) == {
            "enqueuedmailsv4",
            "deletedmailsv2",
            "browsestart",
            "contentstart",
            "eventstore",
        }
        ConfigurationGuard(stores.tables, stores.settings).ensure()
        assert stores.tables.missing() == ()


def test_a_table_that_is_made_or_dropped_since_is_seen(fresh):
    """A migration makes V4, and V3 goes after it, while webadmin, the page and its duties live."""
    old = fresh.but(MAILSLICE_QUEUE_TABLE="v3").settings
    with open_stores(old) as stores, open_stores(fresh.settings) as new:
        queue = queues.create(stores, "spool")
        stores.tables.written.insert_many([row(queue, system_clock())])
        assert MailQueue(stores, queue, system_clock).size() == 1
        assert [one.table for one in stores_of(old).tables.existing] == [QueueTable.V3]
        new.tables.create()
        new.tables.v4.insert_many([row(queue, system_clock())])
        assert MailQueue(stores, queue, system_clock).size() == 2
        assert [one.table for one in stores_of(old).tables.existing] == list(QueueTable)
        new.cassandra.execute(f"DROP TABLE {old.cassandra.keyspace}.enqueuedmailsv3")
        assert MailQueue(stores, queue, system_clock).size() == 1
        assert [one.table for one in stores_of(old).tables.existing] == [QueueTable.V4]
    close_all()
