"""The demo's client of Airflow, against a server that is late or not ready."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from stack.airflow import AirflowApi
from stack.settings import Profile, stack_settings

_ASKED: list[tuple[str, str]] = []
_CODES: list[int] = []


class _Server(BaseHTTPRequestHandler):
    """Gives the codes one after the other, then 200; 0 ends the connection without an answer."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/auth/token":
            code = 201
        else:
            _ASKED.append((self.command, self.path))
            code = _CODES.pop(0) if _CODES else 200
        if code == 0:
            self.close_connection = True
            return
        body = json.dumps({"access_token": "t", "state": "running"}).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - names of the library

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[AirflowApi]:
    _ASKED.clear()
    _CODES.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        client = AirflowApi(stack_settings(Profile.RUN))
        client.url = f"http://127.0.0.1:{server.server_port}"
        yield client
        server.shutdown()


def test_what_may_be_asked_twice_is_asked_again_while_no_answer_comes(api: AirflowApi) -> None:
    _CODES.extend([0, 503])
    assert api.call("GET", "dags/x")["state"] == "running"
    assert _ASKED == [("GET", "/api/v2/dags/x")] * 3


def test_a_post_is_sent_once(api: AirflowApi) -> None:
    _CODES.append(503)
    with pytest.raises(ConnectionError, match="HTTP 503"):
        api.call("POST", "dags/x/dagRuns", {})
    assert _ASKED == [("POST", "/api/v2/dags/x/dagRuns")]


def test_an_answer_stands_even_when_it_refuses(api: AirflowApi) -> None:
    _CODES.append(404)
    assert api.find("dags/x") is None
    assert len(_ASKED) == 1
