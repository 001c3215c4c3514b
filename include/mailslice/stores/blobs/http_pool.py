"""Keep-alive HTTP/1.1 connections to one server: one small answer at a time, no retry."""

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import cast

from httptools import HttpParserError, HttpResponseParser

_IDLE_SECONDS = 20.0
"""An idle connection is closed after this time: servers close theirs after 30 s or more."""


@dataclass(slots=True)
class Answer:
    """A complete answer. Header names are in lower case."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class HttpPool:
    """Connections to one host and port, for one event loop. Each running request has its own."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, connect_seconds: float, limit: int
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._limit = limit
        """Bytes of the largest body that an answer may have."""
        self._idle: list[_Connection] = []
        """Longest unused first."""
        self._reaper: asyncio.TimerHandle | None = None

    async def request(self, request: bytes, *, has_body: bool = True) -> Answer:
        """Sends a request; `has_body` False: a HEAD. OSError: no answer, though it may be done."""
        connection = self._unused() or await self._connect()
        try:
            answer = await connection.ask(request, has_body=has_body)
        except BaseException:
            connection.abort()
            raise
        if connection.is_reusable:
            self._put_back(connection)
        else:
            connection.abort()
        return answer

    def close(self) -> None:
        """Closes idle connections. Those of running requests are closed after the idle time."""
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        while self._idle:
            self._idle.pop().abort()

    def _unused(self) -> "_Connection | None":
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if connection.loop is loop and connection.is_reusable:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_seconds):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, self._limit), self._host, self._port, ssl=self._tls
            )
        return connection

    def _put_back(self, connection: "_Connection") -> None:
        connection.unused_since = connection.loop.time()
        self._idle.append(connection)
        if self._reaper is None:
            self._reaper = connection.loop.call_later(_IDLE_SECONDS, self._reap, connection.loop)

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        old = loop.time() - _IDLE_SECONDS
        while self._idle and self._idle[0].unused_since <= old:
            self._idle.pop(0).abort()
        self._reaper = None
        if self._idle:
            after = max(0.1, self._idle[0].unused_since - old)
            self._reaper = loop.call_later(after, self._reap, loop)


class _Connection(asyncio.Protocol):
    """One connection. The parser (llhttp, of Node.js) calls the `on_` methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.loop = loop
        self.unused_since = 0.0
        self.is_reusable = True
        self._limit = limit
        self._has_body = True
        self._size = 0
        self._pieces: list[bytes] = []
        self._answer = Answer()
        self._waiting: asyncio.Future[Answer] | None = None

    def ask(self, request: bytes, *, has_body: bool) -> asyncio.Future[Answer]:
        """Sends a request; the future is its answer."""
        self._has_body = has_body
        self._waiting = self.loop.create_future()
        self._parser = HttpResponseParser(self)
        self._answer = Answer()
        self._transport.write(request)
        return self._waiting

    def abort(self) -> None:
        self.is_reusable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():
            self.abort()  # data without a request
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(ConnectionError(f"no HTTP answer: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_reusable = False
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    def on_message_begin(self) -> None:
        if self._waiting is None or self._waiting.done():
            self.is_reusable = False  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if not self._has_body:  # the parser would wait for the bytes of Content-Length
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if not self._has_body:
            self._fail(ConnectionError("a body behind the answer to a HEAD"))
        elif self._size > self._limit:
            self._fail(ConnectionError(f"an answer of more than {self._limit} bytes"))
        else:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        answer, parser = self._answer, self._parser
        answer.status = parser.get_status_code()
        answer.body = b"".join(self._pieces)
        self._answer, self._pieces, self._size = Answer(), [], 0
        if answer.status < 200:  # 100 Continue, 103 Early Hints: the answer follows
            return
        self.is_reusable = self.is_reusable and parser.should_keep_alive()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)

    def _fail(self, error: Exception) -> None:
        self.is_reusable = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
