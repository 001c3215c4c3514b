"""Splits a mail's bytes into header and body. Joined they are the content, however malformed."""

import re

_EMPTY_LINE = re.compile(rb"\n\r?\n")


def split(content: bytes) -> tuple[memoryview, memoryview]:
    """The header block up to and including the first empty line, and the body. Copies nothing.

    Line ends are CRLF or LF, also mixed. Without an empty line, all content is header. If it begins
    with an empty line, this line is the whole header.
    """
    view = memoryview(content)
    end = header_end(content)
    return view[:end], view[end:]


def header_end(content: bytes) -> int:
    """The number of bytes of the header block, its empty line included."""
    if content.startswith(b"\n"):
        return 1
    if content.startswith(b"\r\n"):
        return 2
    match = _EMPTY_LINE.search(content)
    return match.end() if match else len(content)
