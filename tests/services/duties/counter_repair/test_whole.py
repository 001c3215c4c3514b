"""A keyspace with one mailbox of every kind.

What a run finds, what it corrects, what it leaves, and that the next one finds nothing.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mailslice.duties.counter_repair.planned import CounterPlan, Difference
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.ledger import Ledger
from mailslice.maintenance.row_file import stream_rows
from mailslice.maintenance.runner import Tools
from mailslice.stores import open_stores
from tests.services.duties.counter_repair.making import Mailboxes, create_mailbox_tables, timeuuid

WRONG = {
    "shows too many": ((7, 4), (5, 3)),
    "shows too few": ((1, 0), (5, 3)),
    "only unseen is off": ((5, 9), (5, 3)),
    "negative": ((-3, -8), (5, 3)),
    "no counter row": (None, (5, 3)),
    "no messages, but counters": ((3, 2), (0, 0)),
    "only in truth": ((5, 3), (6, 4)),
    "only in projection": ((6, 4), (5, 3)),
    "flags of a deleted message": ((6, 4), (5, 3)),
}
"""name -> counters before and after."""
INCONSISTENCIES = {
    "onlyInImapUidTable": 1,
    "onlyInMessageIdTable": 1,
    "flagsDiffer": 2,
    "modSeqDiffers": 1,
    "withoutMessageId": 2,
    "mailboxGone": 3,
    "counterOfGoneMailbox": 2,
}


def planted(james):
    """Every kind of mailbox, by name."""
    boxes = SimpleNamespace(
        **{
            "right": james.mailbox(messages=5, seen=2),
            "empty": james.mailbox(),
            "shows too many": james.mailbox(messages=5, seen=2, add=(2, 1)),
            "shows too few": james.mailbox(messages=5, seen=2, add=(-4, -3)),
            "only unseen is off": james.mailbox(messages=5, seen=2, add=(0, 6)),
            "negative": james.mailbox(messages=5, seen=2, add=(-8, -11)),
            "no messages, but counters": james.mailbox(add=(3, 2)),
            "only in truth": james.mailbox(messages=5, seen=2),
            "only in projection": james.mailbox(messages=5, seen=2, add=(1, 1)),
            "flags of a deleted message": james.mailbox(messages=5, seen=2, add=(1, 1)),
            "right but for flags of a deleted message": james.mailbox(messages=5, seen=2),
            "flags differ": james.mailbox(messages=5, seen=2),
            "modSeq differs": james.mailbox(messages=5, seen=2),
            "gone": timeuuid(),
            "gone without messages": timeuuid(),
        }
    )
    named = vars(boxes)
    named["no counter row"] = james.mailbox()
    for uid in range(1, 6):
        james.message(named["no counter row"], uid, seen=uid <= 2)
    james.message(named["only in truth"], 9, tables=("imapuidtable",))
    james.message(named["only in projection"], 9, tables=("messageidtable",))
    for uid, flags, modseq in ((7, {"seen": False}, 3), (8, {"flags": {"$Forwarded"}}, 4)):
        message = james.message(named["flags differ"], uid, seen=uid == 7, modseq=modseq)
        james.message(
            named["flags differ"],
            uid,
            message=message,
            modseq=modseq,
            tables=("messageidtable",),
            **flags,
        )
    james.add(named["flags differ"], 2, 1)
    message = james.message(named["modSeq differs"], 7, modseq=70)
    james.message(
        named["modSeq differs"], 7, message=message, modseq=71, tables=("messageidtable",)
    )
    james.add(named["modSeq differs"], 1, 1)
    james.message(named["gone"], 1)
    james.message(named["gone"], 2, tables=("messageidtable",))
    james.add(named["gone"], 40, 4)
    james.late_flags(named["gone"], 3)
    james.late_flags(named["flags of a deleted message"], 9)
    james.late_flags(named["right but for flags of a deleted message"], 9)
    james.add(named["gone without messages"], 7, 7)
    return named


@pytest.fixture(scope="module")
def whole(make_fresh):
    settings = make_fresh().but(MAILSLICE_DUTY_SPARK_MASTER="local[2]").settings
    with open_stores(settings) as stores:
        create_mailbox_tables(stores)
        james = Mailboxes(settings, stores)
        boxes = planted(james)
        before = {name: james.counters(mailbox) for name, mailbox in boxes.items()}
        dry = james.run(dry_run=True)
        untouched = {name: james.counters(mailbox) for name, mailbox in boxes.items()}
        report = replace(james, tools=Tools()).run(reason="a test")
        after = {name: james.counters(mailbox) for name, mailbox in boxes.items()}
        second = james.run()
        yield SimpleNamespace(
            james=james,
            boxes=boxes,
            before=before,
            untouched=untouched,
            dry=dry,
            report=report,
            after=after,
            second=second,
        )


def test_what_was_planted_is_what_the_test_thinks(whole):
    assert {name: whole.before[name] for name in WRONG} == {
        name: counters[0] for name, counters in WRONG.items()
    }


def test_every_wrong_mailbox_is_found_and_corrected(whole):
    found = {
        name: whole.report[name]
        for name in (
            "processedMailboxes",
            "failedMailboxes",
            "wrong",
            "planned",
            "applied",
            "skipped",
            "failed",
            "left",
        )
    }
    assert found == {
        "processedMailboxes": 14,
        "failedMailboxes": 0,
        "wrong": len(WRONG),
        "planned": len(WRONG),
        "applied": len(WRONG),
        "skipped": 0,
        "failed": 0,
        "left": 0,
    }
    assert {name: whole.after[name] for name in WRONG} == {
        name: counters[1] for name, counters in WRONG.items()
    }


def test_everything_else_is_left_as_it_was(whole):
    others = {name for name in whole.boxes if name not in WRONG}
    assert {name: whole.after[name] for name in others} == {
        name: whole.before[name] for name in others
    }


def test_inconsistencies_are_counted_by_kind_and_listed(whole):
    assert whole.report["inconsistencies"] == INCONSISTENCIES
    folder = RunFolder(artifacts(whole.james.settings), "counter_repair", "-", whole.report["run"])
    plan = CounterPlan.model_validate(folder.read_json("plan.json")["decided"])
    listed = sorted(
        (row.kind, row.mailbox, row.uid)
        for file in plan.differences
        for row in stream_rows(folder.artifacts, folder.name, file, Difference)
    )
    left = {name.removeprefix(f"{folder.name}/") for name in folder.artifacts.files(folder.name)}
    assert {name for name in left if name.startswith("plan/")} == plan.files()
    boxes = {name: str(mailbox) for name, mailbox in whole.boxes.items()}
    assert listed == sorted(
        [
            ("onlyInImapUidTable", boxes["only in truth"], 9),
            ("onlyInMessageIdTable", boxes["only in projection"], 9),
            ("flagsDiffer", boxes["flags differ"], 7),
            ("flagsDiffer", boxes["flags differ"], 8),
            ("modSeqDiffers", boxes["modSeq differs"], 7),
            ("withoutMessageId", boxes["flags of a deleted message"], 9),
            ("withoutMessageId", boxes["right but for flags of a deleted message"], 9),
            ("mailboxGone", boxes["gone"], 1),
            ("mailboxGone", boxes["gone"], 2),
            ("mailboxGone", boxes["gone"], 3),
        ]
    )
    assert {(row["kind"], row["uid"]) for row in whole.report["inconsistencySample"]} == {
        (kind, uid) for kind, _, uid in listed
    }


def test_a_dry_run_finds_the_same_and_changes_nothing(whole):
    """Without Spark, too: what other tests plan by is what Spark finds."""
    assert whole.dry["before"] == whole.report["before"]
    assert (
        whole.dry["status"],
        whole.dry["wrong"],
        whole.dry["applied"],
        whole.dry["inconsistencies"],
    ) == ("dry run", len(WRONG), 0, INCONSISTENCIES)
    assert whole.untouched == whole.before


def test_a_second_run_finds_no_drift(whole):
    found = (
        whole.second["status"],
        whole.second["wrong"],
        whole.second["applied"],
        whole.second["inconsistencies"],
    )
    assert found == ("nothing to do", 0, 0, INCONSISTENCIES)


def test_the_largest_drifts_stand_first_before_and_after(whole):
    first, *_, last = whole.report["before"]["largest"]
    assert first == {
        "mailbox": str(whole.boxes["negative"]),
        "stored": {"count": -3, "unseen": -8},
        "computed": {"count": 5, "unseen": 3},
        "drift": {"count": -8, "unseen": -11},
    }
    assert max(abs(last["drift"]["count"]), abs(last["drift"]["unseen"])) == 1
    assert whole.report["after"]["wrong"] == 0
    assert {each["drift"]["count"] for each in whole.report["after"]["largest"]} == {0}


def test_the_report_is_in_the_ledger_without_a_queue_and_without_a_user(whole):
    kept = Ledger(whole.james.stores, whole.james.settings).show(whole.report["run"])
    assert json.loads(json.dumps(kept)) == kept
    assert (kept["queue"], kept["duty"], kept["reason"], kept["wrong"]) == (
        None,
        "counter_repair",
        "a test",
        len(WRONG),
    )
    assert "alice" not in json.dumps(kept)


def test_the_gates_have_their_pages(whole):
    assert whole.report["dataDocs"].startswith("file:///")
    pages = artifacts(whole.james.settings).files("data_docs/gates")
    assert [
        any(page.endswith(f"{whole.report['run']}-{gate}.html") for page in pages)
        for gate in ("check", "verify")
    ] == [True, True]


def test_the_plot_shows_the_drifts_before_and_after(whole):
    world = artifacts(whole.james.settings)
    picture = world.read(whole.report["plot"].removeprefix(world.uri("")).lstrip("/")).decode()
    assert f"before {len(WRONG)}" in picture
    assert f"after {len(WRONG)}" in picture
