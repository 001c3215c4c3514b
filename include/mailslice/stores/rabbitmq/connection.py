"""The broker's address, connections to it, and its errors. No error or log shows a password."""

import logging
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import pika
import pika.data
import pika.exceptions
from pika.adapters.blocking_connection import BlockingConnection
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from mailslice.model.errors import BadSetting, MailsliceError, QueueMissing, StoreUnavailable
from mailslice.model.host_port import host_port
from mailslice.model.settings import RabbitSettings
from mailslice.stores.tls import client_tls

HEARTBEAT_SECONDS = 30
SHORT_HEARTBEAT_SECONDS = 8
"""For blocking connections, which have no time-out: two beats detect a frozen broker."""
_URL = "MAILSLICE_RABBITMQ_URL"
_MISSING = re.compile(r"(?:b[\"'])?NOT_FOUND - no (?:queue|exchange) '")
"""pika gives a text that was cut within a character as the repr of its bytes."""
_NO_MECHANISM = re.compile(r"\bAuthenticationError\b")
_SIZES = {b"T": 8, b"d": 8, b"f": 4}
_NESTED = (b"F", b"A")
_decode_value: Callable[[bytes, int], tuple[Any, int]] = pika.data.decode_value


def _tolerant_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """As pika's `decode_value`, with None for times and floats that Python cannot represent, and
    for a table nested in hundreds of others.

    RabbitMQ passes on a time beyond the year 9999, and an infinite float. pika would raise while it
    reads the frame, which ends the connection: one message would stop its queue for ever.
    """
    try:
        return _decode_value(encoded, offset)
    except (ValueError, OverflowError, OSError, RecursionError):
        kind, at = encoded[offset : offset + 1], offset + 1
        if kind in _NESTED:
            return None, at + 4 + int.from_bytes(encoded[at : at + 4], "big")
        if kind not in _SIZES:
            raise
        return None, at + _SIZES[kind]


pika.data.decode_value = _tolerant_value  # pika looks it up there for arrays and tables


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The parts of MAILSLICE_RABBITMQ_URL. `str()`, for messages and logs, is host:port."""

    host: str
    port: int
    vhost: str
    user: str
    password: str = field(repr=False)
    tls: bool

    def __str__(self) -> str:
        return host_port(self.host, self.port)


def broker_address(settings: RabbitSettings) -> BrokerAddress:
    """The address in the settings. Raises BadSetting, without the URL: it may hold a password."""
    allowed = "amqp:// or amqps://user:password@host:port/vhost"
    parts = url_parts(_URL, settings.url.get_secret_value(), ("amqp", "amqps"), allowed)
    tls = parts.scheme == "amqps"
    return BrokerAddress(
        parts.hostname or "",
        parts.port or (5671 if tls else 5672),
        unquote(parts.path[1:]) or "/",
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        tls,
    )


def url_parts(name: str, url: str, schemes: Collection[str], allowed: str) -> SplitResult:
    """The parts of the URL in the setting `name`. Raises BadSetting, which does not show it."""
    try:
        parts = urlsplit(url)
        _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:  # its text has parts of the URL, so of a password with an unquoted # or /
        raise BadSetting(
            f"{name} is not a URL: its host or port cannot be read, or a character of its password "
            f"is not %-encoded; allowed: {allowed}"
        ) from None
    if parts.scheme not in schemes or not parts.hostname:
        scheme = parts.scheme if "://" in url else ""  # else a user may stand before the colon
        raise BadSetting(
            f"{name} has scheme {scheme!r} and host {parts.hostname!r}; allowed: {allowed}"
        )
    return parts


def parameters(
    settings: RabbitSettings, heartbeat: int = HEARTBEAT_SECONDS
) -> pika.ConnectionParameters:
    """Parameters for pika: one attempt, all time-outs from the settings, heartbeats on."""
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # we raise what pika would log
    address = broker_address(settings)
    seconds = settings.timeout.total_seconds()
    tls = pika.SSLOptions(client_tls(settings, "RABBITMQ"), address.host) if address.tls else None
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password, erase_on_connect=False),
        heartbeat=heartbeat,
        blocked_connection_timeout=seconds,
        socket_timeout=seconds,
        stack_timeout=seconds,
        connection_attempts=1,
        ssl_options=tls,
        client_properties={"product": "mailslice", "connection_name": "mailslice"},
    )


def translated(error: BaseException, settings: RabbitSettings) -> MailsliceError:
    """Our error for a failure of pika or of the socket."""
    address = broker_address(settings)
    text = " ".join(_causes(error))
    # Only the broker's own text counts. pika reports every connection that breaks off during the
    # handshake as a "probable" authentication error.
    if "ACCESS_REFUSED" in text or _NO_MECHANISM.search(text):
        return BadSetting(
            f"RabbitMQ at {address} refuses user {address.user!r} of {_URL} (vhost "
            f"{address.vhost!r}): wrong password, or no permission"
        )
    # "connection limit (N) is reached" is no setting's fault: other connections may close.
    if "NOT_ALLOWED" in text and "limit" not in text:
        return BadSetting(
            f"RabbitMQ at {address}: user {address.user!r} of {_URL} may not use vhost "
            f"{address.vhost!r}, or it does not exist"
        )
    if isinstance(error, pika.exceptions.ChannelClosedByBroker):
        return (QueueMissing if is_missing(error) else StoreUnavailable)(
            f"RabbitMQ at {address} closed the channel: {error.reply_code} {error.reply_text}"
        )
    return StoreUnavailable(f"RabbitMQ at {address} does not answer: {_innermost_text(error)}")


def is_missing(closed: pika.exceptions.ChannelClosedByBroker) -> bool:
    """Whether no such queue or exchange exists. A queue that is down has the code 404, too."""
    return _MISSING.match(closed.reply_text) is not None


def _causes(error: BaseException) -> Iterator[str]:
    """Names and texts of an error and of all that it wraps: pika wraps the broker's text."""
    yield f"{type(error).__name__} {error}"
    for wrapped in [*_within(error), *([error.__cause__] if error.__cause__ is not None else [])]:
        yield from _causes(wrapped)


def _innermost_text(error: BaseException) -> str:
    """The text of the innermost error: pika wraps the socket's in two or three of its own."""
    inner = error
    while wrapped := _within(inner):
        inner = wrapped[-1]
    text = " ".join(f"{inner}".split())
    return text if text and text != type(inner).__name__ else "cannot connect"


def _within(error: BaseException) -> list[BaseException]:
    several, single = getattr(error, "exceptions", ()), getattr(error, "exception", None)
    inner = (*several, single, *error.args)
    return [item for item in inner if isinstance(item, BaseException) and item is not error]


PIKA_ERRORS = (pika.exceptions.AMQPError, AMQPConnectorException, OSError)
"""The errors of a pika call when the broker or the connection fails."""


@contextmanager
def blocking_connection(
    settings: RabbitSettings, *, heartbeat: int = SHORT_HEARTBEAT_SECONDS
) -> Iterator[BlockingConnection]:
    """A short connection for administration. Errors in the body are translated, too.

    Its owner may leave it unserved for 2 * `heartbeat` seconds. A close that fails raises nothing,
    as the body's requests were answered. An ack has no answer: send a request after it.
    """
    try:
        connection = BlockingConnection(parameters(settings, heartbeat))
    except PIKA_ERRORS as error:
        raise translated(error, settings) from error
    try:
        yield connection
    except PIKA_ERRORS as error:
        raise translated(error, settings) from error
    finally:
        with suppress(*PIKA_ERRORS):
            if connection.is_open:
                connection.close()
