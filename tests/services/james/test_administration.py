"""An administrator of one side acts, the other side follows: a real James and mailslice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stack.james import JamesError, james_node
from tests.services.james.conftest import Shared
from tests.services.james.mails import of_james, of_mailslice


def some_of_both(shared: Shared) -> None:
    """Four mails: j-1 and m-1 of s@example.org to r@x.test, j-2 and m-2 of others."""
    shared.james.enqueue(
        of_james("j-1", "s@example.org", "r@x.test"), of_james("j-2"), queue=shared.queue
    )
    shared.enqueue(of_mailslice("m-1", "s@example.org", "r@x.test"), of_mailslice("m-2"))


def test_both_count_and_browse_the_same(shared: Shared) -> None:
    some_of_both(shared)
    assert shared.sizes() == (4, 4)
    by_james, by_mailslice = shared.names()
    assert by_james == by_mailslice == ["j-1", "j-2", "m-1", "m-2"]


@pytest.mark.parametrize(
    ("kind", "option", "value", "left"),
    [
        ("Sender", "--sender", "s@example.org", ["j-2", "m-2"]),
        ("Recipient", "--recipient", "r@x.test", ["j-2", "m-2"]),
        ("Name", "--name", "j-1", ["j-2", "m-1", "m-2"]),
    ],
)
@pytest.mark.parametrize("is_james", [True, False], ids=["james-deletes", "mailslice-deletes"])
def test_what_one_deletes_neither_hands_out(
    new_queue: Callable[[], Shared],
    kind: str,
    option: str,
    value: str,
    left: list[str],
    is_james: bool,
) -> None:
    for takes in ("james", "mailslice"):
        shared = new_queue()
        some_of_both(shared)
        if is_james:
            shared.james.remove(kind, value, shared.queue)
        else:
            shared.cli("queue", "delete", shared.queue, option, value, "--yes")
        assert shared.names() == (left, left)
        assert shared.sizes() == (len(left), len(left))
        if takes == "james":
            taken = [mail["name"] for mail in shared.james.dequeue(len(left), queue=shared.queue)]
        else:
            taken = shared.drain(4)
        assert sorted(taken) == left
        assert shared.sizes() == (0, 0)


@pytest.mark.parametrize("is_james", [True, False], ids=["james-clears", "mailslice-clears"])
def test_what_one_clears_neither_hands_out(shared: Shared, is_james: bool) -> None:
    some_of_both(shared)
    if is_james:
        shared.james.call("clear", shared.queue)
    else:
        shared.cli("queue", "clear", shared.queue, "--yes")
    assert shared.sizes() == (0, 0)
    shared.enqueue(of_mailslice("after"))
    assert [mail["name"] for mail in shared.james.dequeue(1, queue=shared.queue)] == ["after"]


def test_a_retry_of_one_is_handed_out_by_the_other(shared: Shared) -> None:
    some_of_both(shared)
    assert len(shared.james.dequeue(1, "RETRY", shared.queue)) == 1
    assert len(shared.drain(1, "retry")) == 1
    assert sorted(shared.drain(4)) == ["j-1", "j-2", "m-1", "m-2"]
    assert shared.sizes() == (0, 0)


def test_what_james_rejects_the_duty_republishes_and_james_hands_it_out(shared: Shared) -> None:
    some_of_both(shared)
    assert len(shared.james.dequeue(4, "REJECT", shared.queue)) == 4
    shared.cli("duty", "run", "dead_letters", "--queue", shared.queue, "--redrive")
    taken = shared.james.dequeue(4, queue=shared.queue)
    assert sorted(mail["name"] for mail in taken) == ["j-1", "j-2", "m-1", "m-2"]
    assert shared.sizes() == (0, 0)


def test_lost_mails_that_james_republished_come_once(shared: Shared) -> None:
    some_of_both(shared)
    _lose_messages(shared)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    shared.james.call("republish", shared.queue, olderThan=int(tomorrow.timestamp() * 1000))
    assert sorted(shared.drain(9)) == ["j-1", "j-2", "m-1", "m-2"]
    assert shared.sizes() == (0, 0)


@pytest.mark.soak
def test_lost_mails_that_the_duty_republished_james_hands_out_once(shared: Shared) -> None:
    """A minute, most of it the census."""
    some_of_both(shared)
    _lose_messages(shared)
    audit = ("queue_audit", "--older-than", "0s", "--census")
    # A James that died between its ack and its mark leaves a row that looks the same.
    repair = ("republish_lost", "--accept-duplicates", "--reason", "the queue was purged")
    for words in (audit, repair):
        shared.cli("duty", "run", *words, "--queue", shared.queue)
    taken = shared.james.dequeue(4, queue=shared.queue)
    assert sorted(mail["name"] for mail in taken) == ["j-1", "j-2", "m-1", "m-2"]
    assert shared.sizes() == (0, 0)


def _lose_messages(shared: Shared) -> None:
    from mailslice.stores.rabbitmq.connection import blocking_connection

    with blocking_connection(shared.fresh.settings.rabbitmq) as connection:
        connection.channel().queue_purge(f"JamesMailQueue-workqueue-{shared.queue}")


def test_a_queue_of_mailslice_is_one_that_james_lists_and_uses(shared: Shared) -> None:
    name = f"{shared.queue}-own"
    shared.cli("queue", "create", name)
    assert name in shared.james.call("queues")["queues"]
    shared.james.enqueue(of_james("j-1"), queue=name)
    assert shared.cli.json("queue", "size", name) == [{"queue": name, "size": 1}]
    assert [mail["name"] for mail in shared.james.dequeue(1, queue=name)] == ["j-1"]


def test_james_starts_on_the_configuration_that_mailslice_stored_and_refuses_a_smaller_one(
    shared: Shared, tmp_path: Any
) -> None:
    cli = shared.cli.but(MAILSLICE_QUEUE_BUCKET_COUNT="3", MAILSLICE_QUEUE_SLICE_WINDOW="30m")
    cli("config", "apply")
    with james_node(
        shared.fresh.settings,
        tmp_path / "same",
        **{"mailqueue.view.bucketCount": 3, "mailqueue.view.sliceWindow": "30m"},
    ) as james:
        james.enqueue(of_james("j-1"), queue=shared.queue)
        assert cli.json("queue", "size", shared.queue) == [{"queue": shared.queue, "size": 1}]
    with (
        pytest.raises(JamesError, match="bucketCount"),
        james_node(
            shared.fresh.settings,
            tmp_path / "fewer",
            **{"mailqueue.view.bucketCount": 2, "mailqueue.view.sliceWindow": "30m"},
        ),
    ):
        pass
    refused = shared.cli.but(MAILSLICE_QUEUE_BUCKET_COUNT="2")(
        "queue", "size", shared.queue, code=3
    )
    assert "3" in refused.err
