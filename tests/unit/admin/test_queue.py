"""The queue room over the tables in memory."""

from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from mailslice.admin import queues
from mailslice.admin.deletions import Deletion
from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.model import crash
from mailslice.model.configuration import ViewConfiguration
from mailslice.model.errors import BadInput, ConfigurationDiffers, StoreUnavailable, UnknownQueue
from mailslice.model.names import QueueTable
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryStores, MemoryTables
from mailslice.view.configuration import ConfigurationGuard, Shape, view_shape
from tests.contracts.guard import GuardContract
from tests.contracts.mail_queue import MailQueueContract
from tests.contracts.making import NOW, row
from tests.contracts.tables import some_queue

HOUR = timedelta(hours=1)


def settings(**environment):
    return load_settings(environment, state_file=Path("/nonexistent"))


class TestMailQueueInMemory(MailQueueContract):
    @pytest.fixture
    def stores(self):
        kept = settings(MAILSLICE_ADMIN_UNDO_FOR="0s")  # its content is not in memory
        return MemoryStores(kept, existing=tuple(QueueTable))

    @pytest.fixture
    def queue(self):
        return some_queue()


class TestGuardInMemory(GuardContract):
    @pytest.fixture
    def make_guard(self):
        tables = MemoryTables(settings())
        return lambda **environment: ConfigurationGuard(tables, settings(**environment))


def test_a_clear_without_undo_that_a_store_ends_says_how_many_mails_it_deleted():
    stores, queue, number = MemoryStores(settings()), some_queue(), count(1)
    rows = [row(queue) for _ in range(1600)]
    stores.tables.v4.insert_many(rows)
    stores.tables.browse_starts.insert_first(queue, rows[0].partition.slice_start)

    def reached(point):
        if point == "delete:mark-sent" and next(number) > 1500:
            raise StoreUnavailable("no answer")

    deletion = Deletion(undo=False)
    crash.arm(reached)
    try:
        with pytest.raises(StoreUnavailable):
            MailQueue(stores, queue, lambda: NOW).clear(deletion)
    finally:
        crash.arm(None)
    assert deletion.mails == 1000


def test_a_created_queue_is_known_and_its_configuration_stored():
    stores = MemoryStores(settings())
    assert queues.create(stores, "spool") == "spool"
    assert stores.rabbitmq.names() == ["spool"]
    assert queues.require(stores, "spool") == "spool"
    assert ConfigurationGuard(stores.tables, stores.settings).stored() is not None


def test_an_unknown_queue_is_refused_with_those_that_are_known():
    stores = MemoryStores(settings())
    with pytest.raises(
        UnknownQueue, match=r"no mail queue 'spool'; there is none.*mailslice queue create spool"
    ):
        queues.require(stores, "spool")
    with pytest.raises(UnknownQueue, match="`mailslice queue create 'a b'` creates it"):
        queues.require(stores, "a b")
    for number in range(25):
        queues.create(stores, f"q{number:02}")
    with pytest.raises(UnknownQueue, match=r"known are: q00, q01.* and 5 more"):
        queues.require(stores, "spool")


def test_a_bad_queue_name_is_refused():
    with pytest.raises(BadInput, match="queue name 'a/b'"):
        queues.require(MemoryStores(settings()), "a/b")


@pytest.mark.parametrize(
    "given",
    [{"sender": "nobody"}, {"recipient": "<>"}, {"recipient": "a b@c"}, {"sender": "a@b\x1b"}],
)
def test_a_filter_that_is_no_address_is_refused_and_named(given):
    with pytest.raises(BadInput, match="is not a mail address") as raised:
        MailFilter(**given)
    assert repr(next(iter(given.values()))) in str(raised.value)


def test_the_shape_of_the_view_is_that_of_its_history():
    stores = MemoryStores(settings())
    assert view_shape(stores) == Shape(HOUR, HOUR, (1,))
    for window, buckets in ((HOUR, 1), (HOUR / 4, 3), (HOUR / 4, 4)):
        ConfigurationGuard(stores.tables, stores.settings).apply(
            ViewConfiguration(window, buckets, 1)
        )
    assert view_shape(stores) == Shape(HOUR / 4, HOUR, (1, 3, 4))


def test_a_shape_that_is_checked_is_refused_where_a_setting_contradicts_what_is_stored():
    stores = MemoryStores(settings())
    assert view_shape(stores, checked=True) == Shape(HOUR, HOUR, (1,)), "nothing is stored yet"
    assert ConfigurationGuard(stores.tables, stores.settings).stored() is None
    ConfigurationGuard(stores.tables, stores.settings).ensure()
    stores.settings = settings(MAILSLICE_QUEUE_BUCKET_COUNT="2")
    assert view_shape(stores).buckets == 1
    with pytest.raises(ConfigurationDiffers):
        view_shape(stores, checked=True)
