"""A real RabbitMQ of the stack that is started on other ports: what it holds is still there."""

from pathlib import Path

import pika
import pytest

from mailslice.model.settings import RabbitSettings
from tests.own_broker import own_broker


# Two starts of a broker; tests/unit/stack/test_rabbitmq.py tests the name that it depends on.
@pytest.mark.soak
def test_messages_are_there_after_a_change_of_ports(tmp_path: Path) -> None:
    with own_broker(tmp_path) as broker:
        first = broker.settings
        with _channel(first) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("kept", durable=True)
            channel.basic_publish("", "kept", b"a mail", pika.BasicProperties(delivery_mode=2))
    with own_broker(tmp_path) as broker:
        assert broker.settings.url != first.url
        with _channel(broker.settings) as connection:
            _, _, body = connection.channel().basic_get("kept", auto_ack=True)
    assert body == b"a mail"


def _channel(settings: RabbitSettings) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(settings.url.get_secret_value()))
