from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.worker.io.content_loader import ContentBudget, Reservation
from mailslice.worker.smtp_server.data import BARE, BUSY, TOO_LARGE, receive

MIB = 1 << 20


async def taken(
    sent: bytes,
    limit: int = MIB,
    reservation: Reservation | None = None,
    *,
    window: int = 64,
    chunk: int = 7,
    refuse_bare: bool = False,
) -> tuple[bytes | str, bytes, int]:
    """What was received, what remains for the next command, and the number of progress calls.

    The bytes come in chunks, through a small window.
    """
    reader = asyncio.StreamReader(limit=window)
    told: list[int] = []
    task = asyncio.create_task(
        receive(
            reader,
            limit,
            reservation or Reservation(ContentBudget(MIB)),
            told.append,
            refuse_bare=refuse_bare,
        )
    )
    for start in range(0, len(sent), chunk):
        reader.feed_data(sent[start : start + chunk])
        await asyncio.sleep(0)
    received = await asyncio.wait_for(task, 5)
    reader.feed_eof()
    return received, await reader.read(), len(told) - 1  # the first is that of the beginning


@pytest.mark.parametrize(
    ("sent", "content"),
    [
        (b".\r\n", b""),
        (b"a\r\n.\r\n", b"a\r\n"),
        (b"..\r\n.\r\n", b".\r\n"),
        (b"...a\r\n..b\r\n.\r\n", b"..a\r\n.b\r\n"),
        (b"a\n.\nb\r\n.\r\n", b"a\n.\nb\r\n"),
        (b"a\r.\r\n.\r\n", b"a\r.\r\n"),
        (b"a\r\n\r.\r\n.\r\n", b"a\r\n\r.\r\n"),
        (b"\r\n\r\n.\r\n", b"\r\n\r\n"),
        (b"\x00\xff\r\n.\r\n", b"\x00\xff\r\n"),
    ],
)
async def test_only_a_lone_dot_between_crlfs_ends_a_mail(sent: bytes, content: bytes) -> None:
    assert await taken(sent + b"NOOP\r\n") == (content, b"NOOP\r\n", 0)


CONTENTS = st.lists(
    st.sampled_from([b".", b"\r", b"\n", b"\r\n", b"a", b"x" * 70, b"\xff"]), max_size=40
).map(b"".join)


def stuffed(content: bytes) -> bytes:
    lines = content.split(b"\r\n")[:-1]
    return b"".join(b"." * line.startswith(b".") + line + b"\r\n" for line in lines) + b".\r\n"


@given(content=CONTENTS, chunk=st.integers(1, 90))
def test_what_a_client_stuffs_comes_out_as_it_was(content: bytes, chunk: int) -> None:
    content += b"\r\n"
    sent = stuffed(content) + b"QUIT\r\n"
    received, left, _ = asyncio.run(taken(sent, window=16, chunk=chunk))
    assert (received, left) == (content, b"QUIT\r\n")


@given(content=CONTENTS, chunk=st.integers(1, 90), window=st.integers(4, 80))
def test_bare_line_ends_are_refused_wherever_they_are_and_nothing_else_is(
    content: bytes, chunk: int, window: int
) -> None:
    content += b"\r\n"
    sent = stuffed(content) + b"QUIT\r\n"
    received, left, _ = asyncio.run(taken(sent, window=window, chunk=chunk, refuse_bare=True))
    is_bare = re.search(rb"\r(?!\n)|(?<!\r)\n", content)
    assert (received, left) == (BARE if is_bare else content, b"QUIT\r\n")


async def test_a_line_longer_than_the_window_is_kept_whole() -> None:
    line = b"." + b"x" * 5000 + b"\r\n"
    received, _, _ = await taken(b"." + line + line[1:] + b".\r\n", window=64, chunk=50)
    assert received == line + line[1:]


async def test_a_mail_over_the_limit_is_read_to_its_end_and_refused() -> None:
    reservation = Reservation(ContentBudget(MIB))
    assert await taken(
        b"123456\r\n" * 10 + b".\r\nNOOP\r\n", limit=79, reservation=reservation
    ) == (
        TOO_LARGE,
        b"NOOP\r\n",
        0,
    )
    assert reservation.grow(MIB), "what it held is given back"
    assert (await taken(b"123456\r\n" * 10 + b".\r\n", limit=80))[0] == b"123456\r\n" * 10


async def test_a_mail_for_which_there_is_no_memory_is_read_to_its_end_and_refused_for_now() -> None:
    budget = ContentBudget(200_000)
    other = Reservation(budget)
    assert other.grow(150_000)
    sent = b"x" * 998 + b"\r\n"
    assert await taken(
        sent * 100 + b".\r\nNOOP\r\n", reservation=Reservation(budget), window=4096, chunk=4096
    ) == (BUSY, b"NOOP\r\n", 1)
    other.release()
    received, _, told = await taken(
        sent * 300 + b".\r\n", reservation=Reservation(budget), window=4096, chunk=4096
    )
    assert received == sent * 300, "alone it passes, although it is larger than the budget"
    assert told == 4


def test_memory_is_given_back_once() -> None:
    budget = ContentBudget(100)
    first, second = Reservation(budget), Reservation(budget)
    assert first.grow(60)
    assert not second.grow(50)
    assert second.grow(40)
    first.release()
    first.release()
    assert not budget.fits(61)
    assert budget.fits(60)
