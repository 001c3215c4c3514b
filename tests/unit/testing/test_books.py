"""The books tell each thing that must not be, and nothing that may."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from mailslice.codec import message
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, QueueName, ViewRow
from mailslice.testing.faults.books import Books, QueueState
from mailslice.testing.faults.operations import RECIPIENTS, content_of

NOW = datetime(2026, 11, 21, tzinfo=UTC)
EMPTY = QueueState(rows={}, marks=frozenset(), blobs=frozenset(), delayed={}, letters=(), ready={})


def made(name: str = "m-1") -> QueuedMail:
    enqueue_id = uuid4()
    return QueuedMail(
        EnqueueId(enqueue_id),
        Mail(name, None, RECIPIENTS),
        BlobId(f"h-{enqueue_id}"),
        BlobId(f"b-{enqueue_id}"),
    )


def row(item: QueuedMail) -> ViewRow:
    return ViewRow(QueueName("q"), Partition(NOW, 0), NOW, item)


def holding(*items: QueuedMail, **changes: Any) -> QueueState:
    blobs = frozenset(key for item in items for key in (item.header_blob_id, item.body_blob_id))
    return replace(
        EMPTY, **{"rows": {item.enqueue_id: row(item) for item in items}, "blobs": blobs, **changes}
    )


@pytest.fixture
def item() -> QueuedMail:
    return made()


@pytest.fixture
def books(item: QueuedMail) -> Books:
    found = Books()
    found.accepted.add(item.enqueue_id)
    return found


def test_a_mail_that_was_accepted_is_live_with_its_content(books: Books, item: QueuedMail) -> None:
    books.check_live(holding(item))
    assert books.wrong == []


@pytest.mark.parametrize("state", ["no row", "no content"])
def test_a_live_mail_without_row_or_content_is_told(
    books: Books, item: QueuedMail, state: str
) -> None:
    books.check_live(
        EMPTY if state == "no row" else holding(item, blobs=frozenset({item.header_blob_id}))
    )
    assert len(books.wrong) == 1
    assert str(item.enqueue_id) in books.wrong[0]


def test_what_was_marked_or_is_a_dead_letter_has_its_end(books: Books, item: QueuedMail) -> None:
    books.check_end(holding(item, marks=frozenset({item.enqueue_id})))
    books.check_end(holding(item, letters=(message.encode(item),)))
    assert books.wrong == []


def test_a_mail_that_was_accepted_and_has_no_end_is_lost(books: Books, item: QueuedMail) -> None:
    books.check_end(holding(item))
    assert [text for text in books.wrong if "(I1)" in text]
    assert books.lost(holding(item)) == {item.enqueue_id}


def test_a_mail_handed_out_after_its_end_is_told_and_one_before_it_is_not(
    books: Books, item: QueuedMail
) -> None:
    books.end([item.enqueue_id], at=10.0)
    books.hand(item, 9.0, content_of("m-1"))
    assert books.wrong == []
    books.hand(item, 10.5, content_of("m-1"))
    assert ["(I2)" in text for text in books.wrong] == [True]


def test_a_mail_of_a_failed_enqueue_that_is_handed_out_is_told(books: Books) -> None:
    books.refused.add("m-2")
    books.hand(made("m-2"), 1.0, content_of("m-2"))
    assert len(books.wrong) == 1


@pytest.mark.parametrize(
    "content", [b"", content_of("m-1")[:-1], content_of("m-1").replace(b"m-1\r\n", b"m-2\r\n", 1)]
)
def test_a_content_that_is_not_whole_is_told(
    books: Books, item: QueuedMail, content: bytes
) -> None:
    books.hand(item, 1.0, content)
    assert len(books.wrong) == 1


def test_recipients_that_were_done_before_a_retry_are_told(books: Books, item: QueuedMail) -> None:
    books.narrowed[item.enqueue_id] = 5.0
    books.hand(item, 4.0, content_of("m-1"), RECIPIENTS[1:])
    books.hand(
        replace(item, mail=replace(item.mail, recipients=RECIPIENTS[1:])),
        6.0,
        content_of("m-1"),
        RECIPIENTS[1:],
    )
    assert books.wrong == []
    books.hand(item, 6.0, content_of("m-1"), RECIPIENTS[1:])
    assert len(books.wrong) == 1


def test_messages_junk_and_blobs_that_should_not_be_there_or_should_are_told(
    item: QueuedMail,
) -> None:
    books = Books()
    books.junk.add(b"junk")
    books.drained[item.enqueue_id] = item
    books.check_end(
        replace(holding(item, marks=frozenset({item.enqueue_id})), ready={"work": 2, "far": 1}),
        far=["far"],
    )
    assert [text.split(" ")[0] for text in books.wrong] == ["a", "2", str(item.enqueue_id)]


def test_who_is_sent_to_twice_and_who_not_at_all_is_told(books: Books, item: QueuedMail) -> None:
    books.send(item.enqueue_id, RECIPIENTS[0])
    assert books.wrong == []
    books.send(item.enqueue_id, RECIPIENTS[0])
    assert len(books.wrong) == 1
    books.check_sent(holding(item), [])
    assert [RECIPIENTS[1] in text for text in books.wrong] == [False, True]


def test_a_recipient_that_is_set_aside_as_in_doubt_need_not_be_sent_to(
    books: Books, item: QueuedMail
) -> None:
    books.send(item.enqueue_id, RECIPIENTS[0])
    books.check_sent(
        holding(item), [replace(item, mail=replace(item.mail, recipients=RECIPIENTS[1:]))]
    )
    assert books.wrong == []


def test_a_sender_who_was_told_nothing_is_told_of() -> None:
    books = Books()
    books.check_told(["m-1", "m-2"], {"m-1"})
    assert [text.split(" ")[0] for text in books.wrong] == ["m-2"]


@pytest.mark.parametrize("times", [0, 1, 2])
def test_what_was_set_aside_is_released_once(item: QueuedMail, times: int) -> None:
    books = Books()
    books.set_aside[item.enqueue_id] = item.mail.name
    for _ in range(times):
        again = made()
        books.drained[again.enqueue_id] = again
    books.check_released(holding(item, marks=frozenset({item.enqueue_id})))
    assert bool(books.wrong) == (times != 1)


def test_a_release_that_is_live_after_all_were_delivered_is_told(item: QueuedMail) -> None:
    books = Books()
    books.check_released(holding(item))
    assert len(books.wrong) == 1
