"""A queue is looked through by checking it out: order, what is acknowledged, what goes back."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from mailslice.model.errors import BadSetting, Refused, StoreUnavailable
from mailslice.stores.rabbitmq.checkout import Checkout, Windows, check_out
from mailslice.stores.rabbitmq.connection import blocking_connection
from mailslice.stores.rabbitmq.management import Management
from mailslice.testing.faults.proxy import Proxy


def declare(settings: Any, name: str, bodies: list[bytes], **arguments: Any) -> None:
    with blocking_connection(settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", name, body, mandatory=True)


def cut(connection: Any) -> None:
    """As a network does: no goodbye."""
    connection._impl._terminate_stream(ConnectionResetError("cut"))
    connection.process_data_events(time_limit=1)


def bodies_of(settings: Any, name: str) -> list[bytes]:
    with check_out(settings.rabbitmq, name) as checkout:
        return [each.body for each in checkout.messages()]


def test_a_classic_queue_keeps_its_order_and_forgets_what_was_acknowledged(fresh: Any) -> None:
    declare(fresh.settings, "q", [b"a", b"b", b"c", b"d"])
    with check_out(fresh.settings.rabbitmq, "q") as checkout:
        found = list(checkout.messages())
        checkout.ack(found[1])
    assert [each.body for each in found] == [b"a", b"b", b"c", b"d"]
    assert bodies_of(fresh.settings, "q") == [b"a", b"c", b"d"]
    with check_out(fresh.settings.rabbitmq, "q", limit=2) as checkout:
        assert [each.body for each in checkout.messages(2)] == [b"a", b"c"]
        assert checkout.ready_count() == 1
    assert bodies_of(fresh.settings, "q") == [b"a", b"c", b"d"]


def test_acks_that_may_not_have_been_taken_are_an_error(fresh: Any) -> None:
    declare(fresh.settings, "q", [b"a"])
    url = urlsplit(fresh.env["MAILSLICE_RABBITMQ_URL"])
    proxy = Proxy((url.hostname or "", url.port or 0))
    netloc = f"{url.username}:{url.password}@127.0.0.1:{proxy.port}"
    behind = fresh.but(MAILSLICE_RABBITMQ_URL=url._replace(netloc=netloc).geturl()).settings

    def ack_and_cut() -> None:
        with check_out(behind.rabbitmq, "q") as checkout:
            (message,) = checkout.messages()
            proxy.stall()
            threading.Timer(0.5, proxy.drop).start()
            checkout.ack(message)

    try:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            ack_and_cut()
    finally:
        proxy.close()


def test_a_queue_that_is_not_there_is_none_and_one_that_somebody_consumes_is_left_alone(
    fresh: Any,
) -> None:
    with check_out(fresh.settings.rabbitmq, "no such queue") as checkout:
        assert checkout is None
    declare(fresh.settings, "q", [])
    with (
        check_out(fresh.settings.rabbitmq, "q"),
        pytest.raises(StoreUnavailable, match="has a consumer"),
        check_out(fresh.settings.rabbitmq, "q", patience=0),
    ):
        raise AssertionError("held twice")


def test_a_quorum_queue_with_a_delivery_limit_is_refused_and_one_without_goes_to_the_back_whole(
    fresh: Any,
) -> None:
    quorum = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}
    declare(fresh.settings, "limited", [b"a"], **quorum, **{"x-delivery-limit": 3})
    declare(fresh.settings, "free", [b"a", b"b"], **quorum)
    management = Management(fresh.settings.rabbitmq)
    assert (
        management.delivery_limit("limited"),
        management.delivery_limit("free"),
    ) == (3, None)
    assert (management.keeps_order("limited"), management.keeps_order("none")) == (False, True)
    with (
        pytest.raises(Refused, match="delivery limit 3"),
        check_out(fresh.settings.rabbitmq, "limited"),
    ):
        raise AssertionError("looked through")
    for _ in range(2):
        assert sorted(bodies_of(fresh.settings, "free")) == [b"a", b"b"]


def test_a_queue_that_the_management_api_does_not_know_is_not_looked_through(fresh: Any) -> None:
    """Its delivery limit is unknown. The API answers 404 to everything below a wrong path."""
    url = f"{fresh.env['MAILSLICE_RABBITMQ_MANAGEMENT_URL']}/wrong"
    wrong = fresh.but(MAILSLICE_RABBITMQ_MANAGEMENT_URL=url).settings
    limited = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1, "x-delivery-limit": 1}
    declare(fresh.settings, "limited", [b"a"], **limited)
    for _ in range(3):
        with (
            pytest.raises(BadSetting, match="know queue limited: check the path of MAILSLICE_R"),
            check_out(wrong.rabbitmq, "limited") as checkout,
        ):
            list(checkout.messages())
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        got, _, body = connection.channel().basic_get("limited")
    assert (got.redelivered, body) == (False, b"a")
    with check_out(wrong.rabbitmq, "none") as checkout:
        assert checkout is None


def test_a_look_takes_a_window_at_a_time_whatever_is_acknowledged_meanwhile(fresh: Any) -> None:
    """A connection served while nothing is read brings at most a window into memory."""
    windows = Windows(first=5, least=2, largest=9)
    bodies = [b"%03d" % number for number in range(40)]
    quorum = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}
    declare(fresh.settings, "classic", bodies)
    declare(fresh.settings, "quorum", bodies, **quorum)
    for name in ("classic", "quorum"):
        with check_out(fresh.settings.rabbitmq, name, windows=windows) as checkout:
            found = []
            for each in checkout.messages():
                checkout.sleep(0.005)
                assert len(checkout._arrived) < 9
                found.append(each.body)
                if len(found) % 3 == 0:
                    checkout.ack(each)
            assert (found, checkout.ready_count()) == (bodies, 0)
        left = [body for number, body in enumerate(bodies, 1) if number % 3]
        assert sorted(bodies_of(fresh.settings, name)) == left
        with check_out(fresh.settings.rabbitmq, name, limit=10, windows=windows) as checkout:
            assert len(list(checkout.messages())) == 10
            assert checkout.ready_count() == len(left) - 10
    assert bodies_of(fresh.settings, "classic") == left


def test_a_connection_that_is_cut_gives_everything_back_in_its_order(fresh: Any) -> None:
    bodies = [b"%03d" % number for number in range(30)]
    declare(fresh.settings, "q", bodies)
    with (
        pytest.raises(StoreUnavailable, match="does not answer"),
        check_out(fresh.settings.rabbitmq, "q", windows=Windows(first=5)) as checkout,
    ):
        _act_and_cut(checkout, after=12)
    assert bodies_of(fresh.settings, "q") == bodies[:12] + bodies[13:]


def _act_and_cut(checkout: Checkout, after: int) -> None:
    for each in itertools.islice(checkout.messages(), after, None):
        checkout.ack(each)
        checkout.sleep(0.1)
        cut(checkout.channel.connection)


def test_who_takes_the_queue_between_two_windows_ends_the_look(
    fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"%03d" % number for number in range(12)]
    declare(fresh.settings, "q", bodies)
    with blocking_connection(fresh.settings.rabbitmq) as other:
        consume = Checkout.consume

        def after_another(checkout: Checkout) -> None:
            if checkout._received:
                other.channel().basic_consume("q", lambda *_: None)
            consume(checkout)

        monkeypatch.setattr(Checkout, "consume", after_another)
        with (
            pytest.raises(
                StoreUnavailable, match="was taken or deleted while it was looked through"
            ),
            check_out(fresh.settings.rabbitmq, "q", windows=Windows(first=5)) as checkout,
        ):
            assert list(checkout.messages())
    monkeypatch.setattr(Checkout, "consume", consume)
    assert bodies_of(fresh.settings, "q") == bodies


def test_messages_of_clients_that_send_milliseconds_have_no_time(fresh: Any) -> None:
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for stamp in (1_795_000_000_000, 1_795_000_000):
            channel.basic_publish(
                "", "q", b"x", pika.BasicProperties(timestamp=stamp), mandatory=True
            )
    with check_out(fresh.settings.rabbitmq, "q") as checkout:
        assert [each.timestamp and each.timestamp.year for each in checkout.messages()] == [
            None,
            2026,
        ]


@pytest.mark.soak
def test_a_hundred_thousand_messages_are_looked_through_in_a_few_megabytes(fresh: Any) -> None:
    body = b"x" * 2000
    with blocking_connection(fresh.settings.rabbitmq) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        for _ in range(100_000):
            channel.basic_publish("", "q", body)
    tracemalloc.start()
    with check_out(fresh.settings.rabbitmq, "q") as checkout:
        assert sum(len(each.body) for each in checkout.messages()) == 100_000 * len(body)
        assert checkout.ready_count() == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60 * 2**20
