"""A James and mailslice on the same queue."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from mailslice.model.mail import Mail, QueuedMail
from mailslice.worker import open_queue
from stack.james import JamesNode, james_node
from tests.acceptance.command import Cli
from tests.conftest import Fresh


@dataclass(frozen=True)
class Shared:
    """One queue that James and mailslice both use."""

    fresh: Fresh
    james: JamesNode
    queue: str

    @property
    def cli(self) -> Cli:
        """mailslice's command line, in this process."""
        return Cli(self.fresh.env).inside()

    def enqueue(self, *mails: tuple[Mail, bytes]) -> list[QueuedMail]:
        """By mailslice."""
        with open_queue(self.queue, self.fresh.settings) as queue:
            return [queue.enqueue(mail, content) for mail, content in mails]

    def drain(self, count: int, outcome: str = "success") -> list[str]:
        """By mailslice: the names of what it handed out, at most `count`."""
        words = ("worker", "drain", self.queue, "--max", count, "--outcome", outcome)
        return [line["name"] for line in self.cli.json(*words)]

    def names(self) -> tuple[list[str], list[str]]:
        """The names of the waiting mails, sorted: as James browses them, and as mailslice does."""
        return (
            sorted(mail["name"] for mail in self.james.browse(self.queue)),
            sorted(line["name"] for line in self.cli.json("queue", "browse", self.queue)),
        )

    def sizes(self) -> tuple[int, int]:
        """The number of waiting mails: James' answer and mailslice's."""
        [line] = self.cli.json("queue", "size", self.queue)
        return self.james.size(self.queue), line["size"]


@pytest.fixture(scope="module")
def node(fresh_module: Fresh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JamesNode]:
    """One James for the tests of a module. It takes 6 s to start."""
    with james_node(fresh_module.settings, tmp_path_factory.mktemp("james")) as node:
        yield node


@pytest.fixture
def new_queue(fresh_module: Fresh, node: JamesNode) -> Callable[[], Shared]:
    """A function that lets James create one more queue."""

    def create() -> Shared:
        queue = f"q{uuid.uuid4().hex[:8]}"
        node.create(queue)
        return Shared(fresh_module, node, queue)

    return create


@pytest.fixture
def shared(new_queue: Callable[[], Shared]) -> Shared:
    """A new queue, which James created."""
    return new_queue()
