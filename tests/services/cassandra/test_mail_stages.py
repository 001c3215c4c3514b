"""Stage marks on a real Cassandra."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from mailslice.model.stages import MailStage, Stage
from mailslice.stores import open_stores
from mailslice.stores.cassandra.own.mail_stages import CLOSED_TTL, OPEN_TTL
from tests.contracts.making import NOW
from tests.contracts.stages import StagesContract
from tests.contracts.tables import some_queue

A, B = "a@x", "b@x"


@pytest.fixture(scope="module")
def stores(fresh_module):
    with open_stores(fresh_module.settings) as stores:
        yield stores


@pytest.fixture
def queue():
    return some_queue()


class TestStagesOnCassandra(StagesContract):
    @pytest.fixture
    def stages(self, stores):
        return stores.own.mail_stages


def test_of_many_that_begin_at_once_exactly_one_is_not_refused(stores, queue):
    enqueue_id = uuid4()
    with ThreadPoolExecutor(8) as threads:
        tries = [
            MailStage(enqueue_id, f"w{number}", 1, 1, (), {A: Stage.SENDING}, NOW)
            for number in range(8)
        ]
        won = list(
            threads.map(lambda record: stores.own.mail_stages.advance(queue, None, record), tries)
        )
    assert won.count(True) == 1
    assert stores.own.mail_stages.get(queue, enqueue_id) == tries[won.index(True)]


def ttl(stores, queue, record):
    keyspace = stores.settings.own.keyspace
    ((left,),) = stores.cassandra.execute(
        stores.cassandra.prepare(
            f"SELECT TTL(owner) FROM {keyspace}.mail_stages WHERE queuename = ? AND enqueueid = ?"
        ),
        [queue, record.enqueue_id],
    )
    return left


def test_a_record_goes_by_itself_and_sooner_when_it_is_closed(stores, queue):
    began = MailStage(uuid4(), "w1", 1, 1, (), {A: Stage.SENDING, B: Stage.SENT}, NOW)
    stores.own.mail_stages.advance(queue, None, began)
    assert OPEN_TTL.total_seconds() - 600 < ttl(stores, queue, began) <= OPEN_TTL.total_seconds()
    stores.own.mail_stages.advance(queue, began, began.moved([A], Stage.FAILED, by="w1", now=NOW))
    assert (
        CLOSED_TTL.total_seconds() - 600 < ttl(stores, queue, began) <= CLOSED_TTL.total_seconds()
    )
