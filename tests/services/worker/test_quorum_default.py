"""The worker on a vhost whose default queue type is quorum, as RabbitMQ's documentation advises: a
few tests of each kind.

All of them: MAILSLICE_TEST_DEFAULT_QUEUE_TYPE=quorum for a run of tests/services/worker.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Fresh
from tests.services.worker.test_dead_letters_and_retries import (
    test_a_marked_mail_is_dropped_before_its_content_is_loaded,
    test_a_rejected_mail_is_on_the_dead_letter_queue_as_james_leaves_it,
    test_retry_hands_the_mail_out_again_at_once,
)
from tests.services.worker.test_delays import (
    test_a_doubled_copy_is_delivered_once,
    test_a_retry_with_a_delay_comes_back_when_it_is_due_as_the_same_mail,
    test_flush_delivers_every_delayed_mail_now_and_drops_the_late_copies,
)
from tests.services.worker.test_round_trip import (
    test_a_completed_mail_leaves_a_row_with_its_mark_and_no_blobs,
    test_what_is_not_settled_comes_again,
)

__all__ = [
    "test_a_completed_mail_leaves_a_row_with_its_mark_and_no_blobs",
    "test_a_doubled_copy_is_delivered_once",
    "test_a_marked_mail_is_dropped_before_its_content_is_loaded",
    "test_a_rejected_mail_is_on_the_dead_letter_queue_as_james_leaves_it",
    "test_a_retry_with_a_delay_comes_back_when_it_is_due_as_the_same_mail",
    "test_flush_delivers_every_delayed_mail_now_and_drops_the_late_copies",
    "test_retry_hands_the_mail_out_again_at_once",
    "test_what_is_not_settled_comes_again",
]


@pytest.fixture(scope="module")
def fresh_module(make_fresh: Callable[[], Fresh]) -> Iterator[Fresh]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAILSLICE_TEST_DEFAULT_QUEUE_TYPE", "quorum")
        yield make_fresh()


@pytest.fixture
def fresh(fresh_module: Fresh) -> Fresh:
    return fresh_module


async def test_the_queues_of_james_are_quorum_queues_here(spool: Any) -> None:
    for name in (spool.names.work_queue, spool.names.dead_letter_queue):
        assert spool.stores.management.arguments(name)["x-queue-type"] == "quorum"
