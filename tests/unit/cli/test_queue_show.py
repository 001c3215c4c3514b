"""`queue show` counts dead letters as the overview and the reports do."""

from types import SimpleNamespace

import pytest

from mailslice.admin import mail_queue
from mailslice.cli import queue
from mailslice.model.mail import QueueName
from mailslice.model.names import RabbitNames
from mailslice.stores.rabbitmq.management import Depth


def test_dead_letters_that_a_duty_has_checked_out_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = QueueName("spool")
    depths = {RabbitNames(name).dead_letter_queue: Depth(1, 2, 0, 0)}
    management = SimpleNamespace(depth=depths.get, messages=lambda _: 0)
    settings = SimpleNamespace(queue=SimpleNamespace(table="v4"))
    stores = SimpleNamespace(management=management, settings=settings)
    monkeypatch.setattr(mail_queue, "MailQueue", lambda *_: SimpleNamespace(size=lambda: 0))
    assert queue._summary(stores, name)["deadLetters"] == 3
