"""A proxy in front of S3 that answers 503 SlowDown on request of a test."""

from __future__ import annotations

import http.client
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from urllib.parse import urlsplit

_BODY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class SlowDown:
    """Listens on a free port.

    `refuse(method, times)`: the next `times` requests with that method get 503.
    """

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target).netloc
        self._left: Counter[str] = Counter()
        self._lock = Lock()
        self.refused: Counter[str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def refuse(self, method: str, times: int) -> None:
        self._left[method] = times

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _busy(self, method: str) -> bool:
        with self._lock:
            if self._left[method] <= 0:
                return False
            self._left[method] -= 1
            self.refused[method] += 1
            return True

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler's
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if proxy._busy(self.command):
                    self._answer(503, {"Content-Type": "application/xml"}, _BODY)
                    return
                # The Host header is passed on unchanged, because it is signed.
                there = http.client.HTTPConnection(proxy._target, timeout=30)
                there.request(self.command, self.path, body or None, dict(self.headers))
                answer = there.getresponse()
                kept = {
                    name: value
                    for name, value in answer.getheaders()
                    if name.lower() not in {"transfer-encoding", "connection"}
                }
                self._answer(answer.status, kept, answer.read())
                there.close()

            def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() != "content-length" or self.command == "HEAD":
                        self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

        return Handler
