"""What one side enqueues, a real James or mailslice, the other hands out unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mailslice.model.mail import Mail, RecipientHeader
from mailslice.worker import SyncQueue, open_queue
from tests.services.james.conftest import Shared

# Begins first: on a new machine it fetches the jars of James, which takes two minutes.
pytestmark = pytest.mark.waits
EXAMPLES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = text.filter(str.strip)
addresses = st.from_regex(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}(\.[A-Za-z0-9'+-]{1,9})?@"
    r"[a-z0-9]{1,12}(-[a-z0-9]{1,4})?\.(example|test)",
    fullmatch=True,
) | st.sampled_from(['"two words"@example.org', "Upper.Case@example.org"])


def _attribute(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return values.map(lambda value: {"serializer": f"{name}Serializer", "value": value})


simple = st.one_of(
    _attribute("Boolean", st.booleans()),
    _attribute("String", text),
    _attribute("Int", st.integers(-(2**31), 2**31 - 1)),
    _attribute("Long", st.integers(-(2**63), 2**63 - 1)),
    _attribute("Double", st.floats(allow_nan=False, allow_infinity=False)),
    _attribute("Url", st.just("https://example.org/path?q=1")),
    _attribute("Date", st.just("2026-11-20T10:15:30.123456+01:00[Europe/Paris]")),
    _attribute("Bytes", st.sampled_from(["", "AAH+/w=="])),
    _attribute("Optional", st.none()),
)
values = st.recursive(
    simple,
    lambda inner: st.one_of(
        _attribute("Collection", st.lists(inner, max_size=3)),
        _attribute("Map", st.dictionaries(text, inner, max_size=3)),
        _attribute("Optional", inner),
    ),
    max_leaves=4,
)
attributes = st.dictionaries(words, values.map(json.dumps), max_size=3)
lines = st.from_regex(r"[ -~]{0,60}", fullmatch=True)
# James refuses others.
header_names = words.filter(lambda name: not set(name) & set(":\r\n"))
header_values = text.filter(lambda value: not set(value) & set("\r\n"))
contents = st.builds(
    lambda subject, body: f"Subject: x{subject}\r\n\r\n".encode() + body,
    lines.filter(lambda line: line == line.rstrip()),
    st.lists(st.binary(max_size=60).filter(lambda line: not {10, 13} & set(line)), max_size=4).map(
        lambda all_lines: b"".join(line + b"\r\n" for line in all_lines)
    ),
)
mails = st.fixed_dictionaries(
    {
        "name": words,
        "sender": st.none() | addresses,
        "recipients": st.lists(addresses, min_size=1, max_size=3, unique=True),
        "state": words,
        "errorMessage": st.none() | words,
        "remoteAddr": words,
        "remoteHost": words,
        "lastUpdated": st.integers(0, 4_102_444_800_000),
        "attributes": attributes,
        "headers": st.lists(
            st.tuples(addresses, header_names, header_values).map(list), max_size=3
        ),
        "mime": contents,
    }
)


def _of_mailslice(mail: dict[str, Any]) -> Mail:
    return Mail(
        name=mail["name"],
        sender=mail["sender"],
        recipients=tuple(mail["recipients"]),
        state=mail["state"],
        error_message=mail["errorMessage"],
        last_updated_ns=mail["lastUpdated"] * 1_000_000,
        attributes={name: value.encode() for name, value in mail["attributes"].items()},
        remote_addr=mail["remoteAddr"],
        remote_host=mail["remoteHost"],
        per_recipient_headers=tuple(RecipientHeader(*header) for header in mail["headers"]),
    )


def _of_james(mail: Mail, content: bytes) -> dict[str, Any]:
    return {
        "name": mail.name,
        "sender": mail.sender,
        "recipients": list(mail.recipients),
        "state": mail.state,
        "errorMessage": mail.error_message,
        "remoteAddr": mail.remote_addr,
        "remoteHost": mail.remote_host,
        "lastUpdated": (mail.last_updated_ns or 0) // 1_000_000,
        "attributes": {name: value.decode() for name, value in mail.attributes.items()},
        "headers": [[h.recipient, h.name, h.value] for h in mail.per_recipient_headers],
        "mime": content,
    }


def comparable(mail: dict[str, Any]) -> dict[str, Any]:
    """The mail with parsed attributes. James' headers are a multimap: they have no order."""
    return {
        **mail,
        "attributes": {name: json.loads(value) for name, value in mail["attributes"].items()},
        "headers": sorted(map(list, mail["headers"])),
    }


class Queues:
    """The queue of all examples, open in mailslice. An example that fails spoils it."""

    def __init__(self, new_queue: Callable[[], Shared]) -> None:
        self._new_queue = new_queue
        self._stack = ExitStack()
        self._current: tuple[Shared, SyncQueue] | None = None

    @contextmanager
    def example(self) -> Iterator[tuple[Shared, SyncQueue]]:
        """The queue, without mails."""
        if self._current is None:
            shared = self._new_queue()
            opened = self._stack.enter_context(open_queue(shared.queue, shared.fresh.settings))
            self._current = shared, opened
        used, self._current = self._current, None
        yield used
        shared, opened = used
        assert (shared.james.size(shared.queue), opened.view.size()) == (0, 0)
        self._current = used

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def queues(new_queue: Callable[[], Shared]) -> Iterator[Queues]:
    queues = Queues(new_queue)
    yield queues
    queues.close()


@EXAMPLES
@given(mail=mails)
def test_james_hands_out_what_mailslice_enqueued(queues: Queues, mail: dict[str, Any]) -> None:
    with queues.example() as (shared, queue):
        queue.enqueue(_of_mailslice(mail), mail["mime"])
        [browsed] = shared.james.browse(shared.queue)
        [taken] = shared.james.dequeue(1, queue=shared.queue)
        assert comparable(browsed) == comparable(taken) == comparable(mail)


@EXAMPLES
@given(mail=mails)
def test_mailslice_hands_out_what_james_enqueued(queues: Queues, mail: dict[str, Any]) -> None:
    with queues.example() as (shared, queue):
        shared.james.enqueue(mail, queue=shared.queue)
        [row] = queue.view.browse()
        delivery = next(queue.deliveries(prefetch=1))
        taken, item = _of_james(delivery.mail, delivery.content), delivery.item
        delivery.complete()
        assert comparable(taken) == comparable(mail)
        assert row.item == item
