"""HEADs and copies by obstore: only what went well counts, the rest is for boto3 to say. Without an S3: a server of a few answers."""

import http.server
import threading
from datetime import UTC, datetime

import pytest

from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.bulk import BulkBlobs, QuickObjects

KEY = BlobId("1_600_ab+c/de=")
COPIED = b'<?xml version="1.0"?><CopyObjectResult><ETag>"x"</ETag></CopyObjectResult>'
ERROR = b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>Please try again.</Message></Error>'


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
    quick = QuickObjects(settings, "own")
    answers += [(200, COPIED), (200, ERROR), (503, ERROR), (404, ERROR)]
    assert [quick.copy("james", KEY, BlobId(f"kept/{KEY}")) for _ in range(4)] == [
        True,
        False,
        False,
        False,
    ]
    assert set(asked) == {("PUT", "/own/kept/1_600_ab%2Bc/de%3D", "james/1_600_ab%2Bc/de%3D")}


def test_a_head_tells_size_and_time_and_none_where_it_does_not_know(server):
    settings, asked, answers = server
    quick = QuickObjects(settings, "james")
    answers += [(200, b"12345"), (404, b""), (403, b"")]
    found = quick.head(KEY)
    assert found is not None
    assert (found.key, found.size, found.modified) == (
        KEY,
        5,
        datetime(2026, 11, 21, 10, 0, 1, tzinfo=UTC),
    )
    assert (quick.head(KEY), quick.head(KEY)) == (None, None)
    assert {each[1] for each in asked} == {"/james/1_600_ab%2Bc/de%3D"}


def test_keys_that_the_crate_would_change_and_credentials_of_the_machine_are_left_to_boto3(server):
    settings, asked, _ = server
    quick = QuickObjects(settings, "james")
    assert [quick.head(BlobId(key)) for key in ("/a", "a//b", "a/../b", "a/")] == [None] * 4
    assert not quick.copy("james", KEY, BlobId("kept//x"))
    assert QuickObjects(settings.model_copy(update={"access_key": None}), "james").head(KEY) is None
    assert asked == []


def test_what_was_not_quick_is_asked_again_by_boto3(server):
    settings, asked, answers = server
    answers += [(404, b""), (200, b"12345")]
    with BulkBlobs(settings, "james") as blobs:
        found = blobs.heads([KEY])[KEY]
    assert found is not None
    assert (found.size, len(asked)) == (5, 2)
