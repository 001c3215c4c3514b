"""`mailslice queue shape`, delays and the options of back-off as the command line has them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from mailslice.model.settings import Settings, load_settings
from mailslice.worker import open_worker
from tests.acceptance.command import Cli

pytestmark = pytest.mark.new_keyspaces

COLUMNS = ["5", "10", "20", "40", "80", "160", "320", "640", "1280", "1280+"]


@pytest.fixture
def cli(fresh_module: Any) -> Any:
    return (
        Cli(
            {
                **fresh_module.env,
                "MAILSLICE_RELAY_RATES": "slow.example=60,bücher.example=30",
                "MAILSLICE_RELAY_CONNECTIONS": "slow.example=2",
            }
        )
        .inside()
        .own_queue()
    )


def add(cli: Any, *recipients: str, delay: str | None = None) -> None:
    words = [word for recipient in recipients for word in ("--recipient", recipient)]
    cli(
        "mail",
        "enqueue",
        "spool",
        "-",
        "--sender",
        "a@b.example",
        *words,
        *(["--delay", delay] if delay else []),
        stdin=b"Subject: x\r\n\r\nbody",
    )


async def put_off(settings: Settings, queue: str) -> None:
    """What a relay does with a mail for a destination that takes no more."""
    async with open_worker(settings, queue) as worker:  # type: ignore[arg-type]
        assert worker.state.throttle is not None
        waits = [
            await worker.state.throttle.enter("c", ("slow.example",), waited=False)
            for _ in range(6)
        ]
        assert waits[-1]
        async with aclosing(worker.deliveries(1)) as deliveries:
            delivery = await asyncio.wait_for(anext(deliveries), 20)
            await delivery.retry(["x@slow.example"], after=timedelta(hours=1), throttled=True)


def test_shape_counts_domains_by_age_with_what_is_delayed_and_what_waits_for_its_destination(
    cli: Any,
) -> None:
    add(cli, "x@slow.example", "y@fast.example")
    asyncio.run(put_off(load_settings(cli.env), cli.spool))
    add(cli, "z@Fast.Example", "w@fast.example", delay="2h")
    add(cli, "v@third.example")
    total, *domains = cli.json("queue", "shape", "spool")
    assert (total["domain"], total["total"], total["delayed"], total["throttled"]) == (
        "TOTAL",
        3,
        2,
        1,
    )
    assert list(total["counts"]) == COLUMNS
    assert total["counts"]["5"] == 3
    found = {line["domain"]: line for line in domains}
    assert {
        domain: (line["total"], line["delayed"], line["throttled"])
        for domain, line in found.items()
    } == {
        "slow.example": (1, 1, 1),
        "fast.example": (1, 1, 0),
        "third.example": (1, 0, 0),
    }
    slow = found["slow.example"]
    assert (slow["perMinute"], slow["connections"], slow["connectionsInUse"]) == (60, 2, 1)
    assert slow["lineSeconds"] is not None
    assert (found["fast.example"]["perMinute"], found["fast.example"]["lineSeconds"]) == (
        None,
        None,
    )
    assert [line["domain"] for line in cli.json("queue", "shape", "spool", "--limit", "1")] == [
        "TOTAL",
        "fast.example",
        "(others)",
    ]
    table = cli("queue", "shape", "spool").out.decode().split("\n")
    assert any(line.split()[:3] == ["domain", "T", "5"] for line in table)
    assert any(line.split()[:3] == ["TOTAL", "3", "3"] for line in table)


def test_a_domain_has_its_limit_and_its_line_in_whatever_form_addresses_name_it(cli: Any) -> None:
    async def ask() -> None:
        async with open_worker(load_settings(cli.env), cli.spool) as worker:
            assert worker.state.throttle is not None
            await worker.state.throttle.enter("c", ("xn--bcher-kva.example",), waited=False)

    asyncio.run(ask())
    add(cli, "x@bücher.example")
    _, line = cli.json("queue", "shape", "spool")
    assert (line["domain"], line["perMinute"], line["lineSeconds"]) == ("bücher.example", 30, 0)


def test_an_empty_queue_has_the_total_alone(cli: Any) -> None:
    (total,) = cli.json("queue", "shape", "spool")
    assert (total["domain"], total["total"], set(total["counts"].values())) == ("TOTAL", 0, {0})


def test_shape_of_an_unknown_queue_is_refused(cli: Any) -> None:
    assert "nowhere" in Cli(cli.env).inside()("queue", "shape", "nowhere", code=2).err


def test_a_delayed_mail_is_browsed_with_its_time_and_flushed_now(cli: Any) -> None:
    add(cli, "x@y.example", delay="30d")
    (line,) = cli.json("queue", "browse", "spool")
    assert line["nextDelivery"] is not None
    assert line["nextDelivery"][:10] in cli("queue", "browse", "spool").out.decode()
    assert cli.json("queue", "flush", "spool")[0]["flushed"] == 1
    (line,) = cli.json("queue", "browse", "spool")
    assert line["nextDelivery"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("mail", "enqueue", "spool", "-", "--recipient", "a@b.example", "--delay", "31d"),
            "at most 30d",
        ),
        (
            ("worker", "run", "--queue", "spool", "--handler", "maildir", "--attempts", "-1"),
            "--attempts",
        ),
        (
            ("worker", "run", "--queue", "spool", "--handler", "maildir", "--back-off-base", "0s"),
            "at least 1s",
        ),
        (
            ("worker", "run", "--queue", "spool", "--handler", "maildir", "--back-off-cap", "28d"),
            "at most 27d",
        ),
        (
            (
                "worker",
                "run",
                "--queue",
                "spool",
                "--handler",
                "maildir",
                "--back-off-factor",
                "0.5",
            ),
            "from 1 to 100",
        ),
        (
            ("worker", "run", "--queue", "spool", "--handler", "maildir", "--give-up", "never"),
            "give-up",
        ),
        (
            (
                "worker",
                "run",
                "--queue",
                "spool",
                "--handler",
                "builtins:print",
                "--give-up",
                "bounce",
            ),
            "MAILSLICE_WORKER_BOUNCE_QUEUE",
        ),
    ],
)
def test_what_is_not_allowed_is_named_with_exit_2(
    cli: Any, words: tuple[str, ...], said: str
) -> None:
    assert said in cli(*words, code=2).err
