"""docs/security.md, section Rights: what a row asks for in RabbitMQ is enough."""

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from mailslice.model.settings import clone_root
from tests.acceptance.command import Cli
from tests.services.cli.test_read_only import PASSWORD, Broker, as_user, fill

PAGE = (clone_root() / "docs" / "security.md").read_text(encoding="utf-8")


def rights_of(part: str) -> dict[str, str]:
    """`read`, `write` and `tag` in the row's cell about RabbitMQ, as far as it names them."""
    row = rf"^\| `{part}` (?:\| [^|]+){{2}}\| ([^|]+) \|"
    [cell] = re.findall(row, PAGE, re.MULTILINE)
    return dict(re.findall(r"(read|write|tag) `([^`]+)`", cell))


@pytest.fixture
def account(fresh: Any) -> Iterator[str]:
    """A user of RabbitMQ with the rights of the row `dead_letters`."""
    broker, user = Broker(fresh.env), f"letters-{uuid.uuid4().hex[:8]}"
    rights = rights_of("dead_letters")
    login = {"password": PASSWORD, "tags": rights["tag"]}
    broker.ask("PUT", f"users/{user}", login)
    patterns = {"configure": "^$", "write": rights["write"], "read": rights["read"]}
    broker.ask("PUT", f"permissions/{broker.vhost}/{user}", patterns)
    yield user
    broker.ask("DELETE", f"users/{user}")


def test_dead_letters_redrives_with_the_rights_of_the_page(fresh: Any, account: str) -> None:
    fill(fresh.env)
    cli = Cli({**fresh.env, **as_user(fresh.env, account)}).inside()
    words = ("duty", "run", "dead_letters", "--queue", "spool", "--redrive", "--json")
    report = json.loads(cli(*words).out.splitlines()[-1])
    assert (report["redriven"], report["kept"]) == (1, 0)
