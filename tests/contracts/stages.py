"""The contract of every table of stage marks. Runs on the double in memory and on Cassandra.

A subclass gives `stages` and `queue`.
"""

from dataclasses import replace
from uuid import uuid4

import pytest

from mailslice.model.mail import QueueName
from mailslice.model.stages import MailStage, Stage
from tests.contracts.making import NOW

A, B, C = "a@x", "b@x", "jürgen@bücher.example"


class StagesContract:
    @pytest.fixture
    def began(self):
        return MailStage(
            uuid4(),
            "w1",
            1,
            1,
            (C,),
            {A: Stage.SENT, B: Stage.SENDING},
            NOW.replace(microsecond=7000),
        )

    def test_a_mail_that_nobody_began_has_no_record(self, stages, queue):
        assert stages.get(queue, uuid4()) is None

    def test_a_record_comes_back_as_it_was_written(self, stages, queue, began):
        assert stages.advance(queue, None, began)
        assert stages.get(queue, began.enqueue_id) == began
        bare = MailStage(uuid4(), "w1", 2, 3, ())
        assert stages.advance(queue, MailStage(bare.enqueue_id, "", 1, 0, (A,)), bare)
        assert stages.get(queue, bare.enqueue_id) == bare

    def test_records_of_other_queues_and_mails_are_others(self, stages, queue, began):
        stages.advance(queue, None, began)
        assert stages.get(QueueName(queue + "-other"), began.enqueue_id) is None
        assert stages.advance(queue, None, replace(began, enqueue_id=uuid4()))

    def test_of_two_that_begin_one_is_refused(self, stages, queue, began):
        assert stages.advance(queue, None, began)
        assert not stages.advance(queue, None, replace(began, owner="w2"))
        assert stages.get(queue, began.enqueue_id) == began

    @pytest.mark.parametrize("other", [{"owner": "w2"}, {"attempt": 2}, {"step": 2}])
    def test_only_who_knows_owner_attempt_and_step_goes_on(self, stages, queue, began, other):
        stages.advance(queue, None, began)
        after = began.moved([B], Stage.SENT, by="w1", now=NOW)
        assert not stages.advance(queue, replace(began, **other), after)
        assert stages.get(queue, began.enqueue_id) == began
        assert stages.advance(queue, began, after)
        assert stages.get(queue, began.enqueue_id) == after

    def test_a_record_that_was_expected_and_is_gone_refuses(self, stages, queue, began):
        assert not stages.advance(queue, began, replace(began, step=2))
        assert stages.get(queue, began.enqueue_id) is None
