"""The tables of the queue view on a real Cassandra."""

from uuid import uuid4

import pytest

from mailslice.bench.clearing import drop_marks
from mailslice.model.errors import StoreUnavailable
from mailslice.model.mail import EnqueueId
from mailslice.model.names import QueueTable
from mailslice.stores import open_stores
from mailslice.stores.cassandra import deleted_mails
from mailslice.stores.cassandra.ddl import create_queue_tables, queue_tables
from mailslice.stores.cassandra.deleted_mails import ALL
from mailslice.stores.cassandra.ids import id_set, pack
from tests.contracts.tables import TablesContract, some_queue


class TestTablesOnCassandra(TablesContract):
    @pytest.fixture(scope="class")
    def tables(self, fresh_module):
        with open_stores(fresh_module.settings) as stores:
            stores.tables.create()
            create_queue_tables(stores.cassandra, queue_tables(QueueTable.V3))
            yield stores.tables

    @pytest.fixture
    def queue(self):
        return some_queue()


def test_marks_of_many_ids_are_one_answer_however_small_the_pages(fresh_module, monkeypatch):
    """Cassandra reads the partitions of a paged IN one after each other."""
    monkeypatch.setattr("mailslice.stores.cassandra.session.PAGE_ROWS", 10)
    queue = some_queue()
    with open_stores(fresh_module.settings) as stores:
        stores.tables.create()
        ids = [EnqueueId(uuid4()) for _ in range(100)]
        stores.tables.deleted.mark_many(queue, ids)
        assert [
            marked for _, _, marked in stores.tables.deleted.look_up(queue, [("", pack(ids))])
        ] == [ALL]


@pytest.fixture
def scanning(fresh_module, monkeypatch):
    """(a queue, its marks, lists of ids that are marked but the last of each); scans begin early.

    The last ones are marked in another queue.
    """
    queue = some_queue()
    lists = [[EnqueueId(uuid4()) for _ in range(20)] for _ in range(4)]
    monkeypatch.setattr(deleted_mails, "LISTS_BEFORE_SCAN", 1)
    monkeypatch.setattr(deleted_mails, "MARKS_A_LIST", 10**9)
    with open_stores(fresh_module.settings) as stores:
        stores.tables.create()
        stores.tables.deleted.mark_many(queue, [one for ids in lists for one in ids[:-1]])
        stores.tables.deleted.mark_many(some_queue(), [ids[-1] for ids in lists])
        yield queue, stores.tables.deleted, lists


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("most", [10**9, -1])
def test_a_long_look_up_gives_the_same_with_a_scan_of_all_marks_as_without(
    scanning, monkeypatch, most, ordered
):
    queue, deleted, lists = scanning
    monkeypatch.setattr(deleted_mails, "MARKS_SCANNED", most)
    asked = [(number, pack(ids)) for number, ids in enumerate([*lists, lists[0][:-1]])]
    looked_up = deleted.look_up(queue, iter(asked), ordered=ordered)
    assert {tag: (packed, marked) for tag, packed, marked in looked_up} == {
        **{at: (packed, id_set(packed[:-20])) for at, packed in asked[:-1]},
        4: (asked[4][1], ALL),
    }


@pytest.mark.soak
@pytest.mark.parametrize(("marks_a_list", "last"), [(10**9, ALL), (1, frozenset())])
def test_marks_are_scanned_once_what_was_asked_has_cost_as_much(
    scanning, monkeypatch, marks_a_list, last
):
    """A mark that the scan has read is not asked for later."""
    queue, deleted, lists = scanning
    monkeypatch.setattr(deleted_mails, "MARKS_A_LIST", marks_a_list)
    # A sample of the table has some of so many.
    deleted.mark_many(queue, (EnqueueId(uuid4()) for _ in range(40_000)))
    looked_up = deleted.look_up(queue, iter([("", pack(ids[:-1])) for ids in lists]), 1)
    assert [next(looked_up)[2], next(looked_up)[2]] == [ALL, ALL]
    drop_marks(deleted, queue, [one for ids in lists for one in ids])
    assert [marked for _, _, marked in looked_up][-1] == last


def test_ids_whose_marks_no_scan_gives_are_looked_up(scanning, monkeypatch):
    queue, deleted, lists = scanning

    def unavailable(*_):
        raise StoreUnavailable("no range is read")

    monkeypatch.setattr(deleted, "packed_ids_of", unavailable)
    looked_up = deleted.look_up(queue, iter([("", pack(ids[:-1])) for ids in lists]))
    assert [marked for _, _, marked in looked_up] == [ALL] * 4
