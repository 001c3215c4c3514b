"""Where a mail is split, on bytes."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.codec.content import split

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(
    path.stem for path in GOLDEN.glob("*.json") if "mime_base64" in json.loads(path.read_text())
)


@pytest.mark.parametrize("case", CASES)
def test_mails_are_split_where_james_splits_them(case):
    golden = json.loads((GOLDEN / f"{case}.json").read_text())
    header, body = split(base64.b64decode(golden["mime_base64"]))
    assert len(header) == golden["s3"]["header"]["size"]
    assert bytes(body) == base64.b64decode(golden["s3"]["body"]["base64"])


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (b"", b""),
        (b"A: 1\r\n\r\nbody", b"A: 1\r\n\r\n"),
        (b"A: 1\n\nbody", b"A: 1\n\n"),
        (b"A: 1\n\r\nbody", b"A: 1\n\r\n"),
        (b"A: 1\r\n\nbody", b"A: 1\r\n\n"),
        (b"A: 1\n\n\r\n\r\n", b"A: 1\n\n"),
        (b"A: 1\r\n\r\n", b"A: 1\r\n\r\n"),
        (b"A: 1\r\n", b"A: 1\r\n"),
        (b"no line end", b"no line end"),
        (b"\r\nbody\r\n\r\n", b"\r\n"),
        (b"\nbody\n\n", b"\n"),
        (b"A: 1\r\rbody\n\nmore", b"A: 1\r\rbody\n\n"),
        (b"A: 1\n \nbody\n\nmore", b"A: 1\n \nbody\n\n"),
        (b"\xff\x00\r\n\r\n\xfe", b"\xff\x00\r\n\r\n"),
    ],
)
def test_the_header_ends_with_the_first_empty_line(content, header):
    assert (bytes(split(content)[0]), bytes(split(content)[1])) == (header, content[len(header) :])


@given(
    st.binary()
    | st.lists(st.sampled_from([b"\r", b"\n", b"a", b": ", b"\r\n", b"\xff"])).map(b"".join)
)
def test_header_and_body_are_always_the_content(content):
    header, body = split(content)
    assert bytes(header) + bytes(body) == content
    assert b"\n\n" not in bytes(header)[:-2]
    assert b"\n\r\n" not in bytes(header)[:-3]
