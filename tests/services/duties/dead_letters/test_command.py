"""The command lines.

`queue dead`, which only looks, and `duty run dead_letters`, as scripts see them.
"""

import json

from tests.acceptance.command import Cli
from tests.services.duties.world import environment

FIELDS = {
    "position",
    "enqueueId",
    "name",
    "sender",
    "cause",
    "reason",
    "diedAt",
    "redrives",
    "deleted",
    "bytes",
}


def cli_of(letters):
    return Cli(
        {
            name: value
            for name, value in environment(letters.settings).items()
            if name.startswith("MAILSLICE_")
        }
    ).inside()


def test_queue_dead_shows_a_line_a_letter_and_leaves_them(letters):
    cli = cli_of(letters)
    assert cli("queue", "dead", letters.queue, "--json").out == b""
    first, second = letters.mail("first"), letters.mail("sec\x1bond", marked=True)
    letters.letter(first)
    letters.letter(b"\xff")
    letters.letter(second, "expired")
    before = letters.dead()
    lines = cli.json("queue", "dead", letters.queue)
    assert [set(line) for line in lines] == [FIELDS] * 3
    assert [(line["position"], line["name"], line["cause"], line["deleted"]) for line in lines] == [
        (0, "first", "rejected by a handler", False),
        (1, None, "bad JSON", False),
        (2, "sec\x1bond", "expired", True),
    ]
    assert lines[0]["enqueueId"] == str(first.enqueue_id)
    assert lines[0]["diedAt"].endswith("Z")
    assert len(cli.json("queue", "dead", letters.queue, "--limit", "2")) == 2
    table = cli("queue", "dead", letters.queue, "--limit", "2")
    assert "bad JSON" in table.out.decode()
    assert "1 more" in table.err
    assert letters.dead() == before
    assert cli("queue", "dead", "nobody", "--json", code=2).out == b""


def test_the_duty_by_its_command_line(letters):
    cli = cli_of(letters)
    letters.letter(letters.mail("kept"))
    letters.letter(letters.mail("gone", marked=True))
    letters.letter(b"no mail")
    report = json.loads(
        cli("duty", "run", "dead_letters", "--queue", letters.queue, "--json").out.splitlines()[-1]
    )
    assert {
        "run",
        "duty",
        "queue",
        "causes",
        "redriven",
        "dropped",
        "exported",
        "kept",
        "planned",
        "applied",
        "skipped",
        "failed",
    } <= set(report)
    assert (report["redriven"], report["dropped"], report["exported"], report["kept"]) == (
        0,
        1,
        1,
        1,
    )
    run = (
        "duty",
        "run",
        "dead_letters",
        "--queue",
        letters.queue,
        "--redrive",
        "--limit",
        "1",
        "--reason",
        "why not",
        "--json",
    )
    report = json.loads(cli(*run).out.splitlines()[-1])
    assert (report["redriven"], report["kept"], report["reason"], report["params"]["limit"]) == (
        1,
        0,
        "why not",
        1,
    )
    for wrong in (
        ("--limit", "none"),
        ("--cause", "x", "--redrive"),
        ("--older-than", "1h"),
        ("--sender", "@", "--redrive"),
        ("--no-such",),
    ):
        assert (
            cli("duty", "run", "dead_letters", "--queue", letters.queue, *wrong, code=2).out == b""
        )
