"""HEADs and copies by `small`: only success counts, the rest is for boto3 to say.

Without an S3: a server of a few answers.
"""

import http.server
import socket
import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings, Settings
from mailslice.stores import Stores
from mailslice.stores.blobs.fast_s3 import FastRequests
from mailslice.stores.blobs.s3_store import S3BlobStore
from tests.services.blobs.s3_server import Server, answer, say, serving

KEY = BlobId("1_600_ab+c/de=")
COPIED = b'<?xml version="1.0"?><CopyObjectResult><ETag>"x"</ETag></CopyObjectResult>'
ERROR = (
    b'<?xml version="1.0"?><Error><Code>InternalError</Code>'
    b"<Message>Please try again.</Message></Error>"
)


@pytest.fixture
def server():
    """(settings, the requests that came, the answers that are given: status and body)."""
    asked, answers = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_PUT(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.command, self.path, self.headers.get("x-amz-copy-source")))
            status, body = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if self.command == "HEAD":
                self.send_header("Last-Modified", "Sat, 21 Nov 2026 10:00:01 GMT")
                self.send_header("ETag", '"x"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT  # noqa: N815

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        settings = S3Settings(
            endpoint=f"http://127.0.0.1:{listening.server_address[1]}",
            access_key="a",
            secret_key="b",
        )
        yield settings, asked, answers
        listening.shutdown()


def test_a_copy_names_both_buckets_and_an_error_in_a_good_status_is_no_copy(server):
    settings, asked, answers = server
    answers += [(200, COPIED), (200, ERROR), (503, ERROR), (404, ERROR)]
    with closing(FastRequests(settings, "own")) as fast:
        copied = [fast.copies("james", {KEY: BlobId(f"kept/{KEY}")}) for _ in range(4)]
    assert [{*keys} for keys in copied] == [{KEY}, set(), set(), set()]
    assert set(asked) == {("PUT", "/own/kept/1_600_ab%2Bc/de%3D", "james/1_600_ab%2Bc/de%3D")}


@contextmanager
def opened(settings):
    fast = FastRequests(settings, "james")
    yield fast
    fast.close()


def test_a_head_tells_size_and_time_and_none_where_it_does_not_know(server):
    settings, asked, answers = server
    answers += [(200, b"12345"), (404, b""), (403, b""), (503, b"")]
    with opened(settings) as fast:
        found = fast.heads([KEY])[KEY]
        assert (found.key, found.size, found.modified) == (
            KEY,
            5,
            datetime(2026, 11, 21, 10, 0, 1, tzinfo=UTC),
        )
        assert [fast.heads([KEY]) for _ in range(3)] == [{}] * 3
    assert {each[1] for each in asked} == {"/james/1_600_ab%2Bc/de%3D"}


def test_many_heads_are_of_their_own_keys(server):
    settings, asked, answers = server
    answers += [(200, b"12345")] * 200
    keys = [BlobId(f"k{number}") for number in range(200)]
    with opened(settings) as fast:
        found = fast.heads(keys)
    assert [found[key].key for key in keys] == keys
    assert sorted(each[1] for each in asked) == sorted(f"/james/{key}" for key in keys)


WHEN = "Last-Modified: Sat, 21 Nov 2026 10:00:01 "


@pytest.mark.parametrize(
    ("head", "known"),
    [
        (answer(200, b"", f"{WHEN}GMT"), True),
        (answer(200, b"", f"{WHEN}-0000"), False),
        (answer(200, b"", "Last-Modified: soon"), False),
        (answer(200, b"", "Last-Modified: \xe9"), False),
        (answer(200), False),
        (answer(200, b"", "Transfer-Encoding: chunked", f"{WHEN}GMT"), False),
        (b"220 mail.example ESMTP\r\n", False),
    ],
)
def test_a_head_that_does_not_say_all_is_unknown(head, known):
    with serving(Server(rest=say(head))) as server:
        settings = S3Settings(
            endpoint=f"http://127.0.0.1:{server.port}", access_key="a", secret_key="b"
        )
        with opened(settings) as fast:
            assert [bool(fast.heads([KEY])) for _ in range(2)] == [known] * 2


def test_a_head_with_a_body_behind_it_is_the_last_of_its_connection():
    """Bytes of a body are never taken for the next answer."""
    body = answer(200, b"HTTP/1.1 200 OK\r\n\r\n", f"{WHEN}GMT")
    with serving(Server(say(body), rest=say(answer(200, b"", f"{WHEN}GMT")))) as server:
        settings = S3Settings(
            endpoint=f"http://127.0.0.1:{server.port}", access_key="a", secret_key="b"
        )
        with opened(settings) as fast:
            sizes = [fast.heads([KEY])[KEY].size for _ in range(3)]
    assert sizes == [19, 0, 0]


def test_a_head_without_an_answer_is_unknown_in_time(server):
    settings, _, answers = server
    answers += [(200, b"12345")]
    slow = settings.model_copy(update={"timeout": timedelta(seconds=0.3)})
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as silent,
        opened(
            slow.model_copy(update={"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        ) as fast,
    ):
        assert fast.heads([KEY]) == {}


def test_keys_that_the_crate_would_change_and_credentials_of_the_machine_are_left_to_boto3(server):
    settings, asked, _ = server
    keys = [BlobId(key) for key in ("/a", "a//b", "a/../b", "a/", "", "\ud800", "a" * 1025)]
    with opened(settings) as fast:
        assert fast.heads(keys) == {}
        assert not fast.copies("james", {KEY: BlobId("kept//x")})
    with opened(settings.model_copy(update={"access_key": None})) as fast:
        assert fast.heads([KEY]) == {}
    assert asked == []


def test_stores_that_are_closed_have_no_thread_left(server):
    settings, _, answers = server
    answers += [(200, b"12345")] * 2
    with Stores(Settings(s3=settings)) as stores:
        assert stores.blobs.heads([KEY])
        assert stores.own_blobs.heads([KEY])
    assert not [one for one in threading.enumerate() if one.name.startswith("requests to bucket")]


def test_what_was_not_known_is_asked_again_by_boto3(server):
    settings, asked, answers = server
    answers += [(404, b""), (200, b"12345")]
    with S3BlobStore(settings, "james") as blobs:
        found = blobs.heads([KEY])[KEY]
    assert found is not None
    assert (found.size, len(asked)) == (5, 2)
