"""Addresses, and the meaning of pika's errors."""

from __future__ import annotations

from typing import Any

import pika.exceptions
import pytest
from pika.data import decode_short_string

from mailslice.model.errors import BadSetting, QueueMissing, StoreUnavailable
from mailslice.model.settings import RabbitSettings
from mailslice.stores.rabbitmq import connection, link
from mailslice.stores.rabbitmq.connection import (
    blocking_connection,
    broker_address,
    parameters,
    translated,
)


def settings(url: str, **more: Any) -> RabbitSettings:
    return RabbitSettings(url=url, **more)


def closed(text: str) -> Exception:
    """A passive declare that RabbitMQ answered with 404."""
    return pika.exceptions.ChannelClosedByBroker(404, f"NOT_FOUND - {text}")


def closed_within_a_character() -> pika.exceptions.ChannelClosedByBroker:
    """As pika has it: RabbitMQ cuts the text of a long name after 255 bytes."""
    text = f"NOT_FOUND - no queue '{'Ü' * 200}".encode()[:255]
    return pika.exceptions.ChannelClosedByBroker(
        404, decode_short_string(bytes([len(text)]) + text, 0)[0]
    )


@pytest.mark.parametrize(
    ("url", "shown", "vhost", "user", "password", "tls"),
    [
        ("amqp://guest:guest@127.0.0.1:5672/%2F", "127.0.0.1:5672", "/", "guest", "guest", False),
        ("amqp://127.0.0.1", "127.0.0.1:5672", "/", "guest", "guest", False),
        ("amqp://u:p@rabbit/", "rabbit:5672", "/", "u", "p", False),
        (
            "amqps://u%40x:p%2Fw@rabbit/mail%2Fslice",
            "rabbit:5671",
            "mail/slice",
            "u@x",
            "p/w",
            True,
        ),
        ("amqp://u:p@[::1]:5673/james", "[::1]:5673", "james", "u", "p", False),
    ],
)
def test_a_url_names_all_parts(
    url: str, shown: str, vhost: str, user: str, password: str, tls: bool
) -> None:
    found = broker_address(settings(url))
    assert (str(found), found.vhost, found.user, found.password, found.tls) == (
        shown,
        vhost,
        user,
        password,
        tls,
    )


@pytest.mark.parametrize(
    "url",
    ["http://u:sesame@rabbit", "amqp://u:sesame@", "amqp://u:sesame@rabbit:port/", "rabbit", ""],
)
def test_what_is_no_amqp_url_is_a_bad_setting_that_hides_the_password(url: str) -> None:
    with pytest.raises(BadSetting, match="MAILSLICE_RABBITMQ_URL") as raised:
        broker_address(settings(url))
    assert "sesame" not in str(raised.value)


def test_the_password_is_not_in_the_repr() -> None:
    assert "sesame" not in repr(broker_address(settings("amqp://u:sesame@rabbit/")))


def test_time_outs_come_from_the_settings() -> None:
    found = parameters(settings("amqp://rabbit/", timeout="3s"))
    assert (
        found.socket_timeout,
        found.stack_timeout,
        found.blocked_connection_timeout,
        found.connection_attempts,
    ) == (3, 3, 3, 1)


def test_tls_files_that_cannot_be_read_are_a_bad_setting() -> None:
    with pytest.raises(BadSetting, match="MAILSLICE_RABBITMQ_TLS_CA"):
        parameters(settings("amqps://rabbit/", tls_ca="/nonexistent/ca.pem"))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            pika.exceptions.ProbableAuthenticationError(
                "(403) 'ACCESS_REFUSED - Login was refused'"
            ),
            BadSetting,
            "refuses user 'u'",
        ),
        (
            pika.exceptions.ConnectionClosedByBroker(530, "NOT_ALLOWED - vhost james not found"),
            BadSetting,
            "may not use vhost 'james'",
        ),
        (pika.exceptions.AuthenticationError("PLAIN"), BadSetting, "refuses user 'u'"),
        (
            pika.exceptions.ProbableAuthenticationError(
                "StreamLostError: ('Transport indicated EOF',)"
            ),
            StoreUnavailable,
            "does not answer",
        ),
        (
            pika.exceptions.ProbableAccessDeniedError(
                "StreamLostError: ('Transport indicated EOF',)"
            ),
            StoreUnavailable,
            "does not answer",
        ),
        (
            ConnectionRefusedError(111, "Connection refused"),
            StoreUnavailable,
            "rabbit:5672 does not answer: [Errno 111] Connection refused",
        ),
        (pika.exceptions.AMQPConnectionError(), StoreUnavailable, "cannot connect"),
        (
            pika.exceptions.ConnectionBlockedTimeout("Blocked connection timeout expired."),
            StoreUnavailable,
            "Blocked connection",
        ),
        (closed("no queue 'q' in vhost '/'"), QueueMissing, "no queue 'q'"),
        (closed("no exchange 'e' in vhost '/'"), QueueMissing, "no exchange 'e'"),
        (closed_within_a_character(), QueueMissing, "no queue '"),
        *(
            (closed(text), StoreUnavailable, f"closed the channel: 404 NOT_FOUND - {text}")
            for text in (
                "home node 'b' of durable queue 'no queue' in vhost '/' is down or inaccessible",
                "queue 'q' in vhost '/' process is stopped by supervisor",
                "queue 'q' in vhost '/' has crashed and failed to restart",
                "failed to perform operation on queue 'q' in vhost '/' due to timeout",
            )
        ),
    ],
)
def test_errors_say_what_to_do(error: Exception, kind: type, words: str) -> None:
    found = translated(error, settings("amqp://u:sesame@rabbit/james"))
    assert type(found) is kind
    assert words in str(found)
    assert "rabbit:5672" in str(found)
    assert "sesame" not in str(found)


class Unclosable:
    """A connection whose broker goes while it says goodbye."""

    is_open = True
    closes = 0

    def __init__(self, _parameters: object) -> None:
        pass

    def close(self) -> None:
        Unclosable.closes += 1
        raise pika.exceptions.StreamLostError("Transport indicated EOF")


@pytest.fixture
def unclosable(monkeypatch: pytest.MonkeyPatch) -> RabbitSettings:
    monkeypatch.setattr(connection, "BlockingConnection", Unclosable)
    monkeypatch.setattr(Unclosable, "closes", 0)
    return settings("amqp://u:p@rabbit:5672/")


def test_a_close_that_fails_takes_nothing_back_of_what_was_answered(
    unclosable: RabbitSettings,
) -> None:
    with blocking_connection(unclosable):
        pass
    assert Unclosable.closes == 1


def test_a_close_that_fails_hides_no_error_of_the_body(unclosable: RabbitSettings) -> None:
    with (
        pytest.raises(StoreUnavailable, match=r"rabbit:5672 does not answer: gone"),
        blocking_connection(unclosable),
    ):
        raise pika.exceptions.StreamLostError("gone")
    with pytest.raises(KeyError), blocking_connection(unclosable):
        raise KeyError
    assert Unclosable.closes == 2


class LostAtOnce:
    """A connection that is opened and lost before anybody uses it."""

    def __init__(self, _wanted: object, opened: Any, *_failed: object, custom_ioloop: Any) -> None:
        custom_ioloop.call_soon(opened, self)

    def channel(self, **_: object) -> None:
        raise pika.exceptions.ConnectionWrongStateError("it is closed")


async def test_a_connection_that_is_lost_before_its_channel_is_asked_for_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "JoiningConnection", LostAtOnce)
    with pytest.raises(StoreUnavailable, match="rabbit:5672 does not answer"):
        await link.Link.open(settings("amqp://u:p@rabbit:5672/"))
