"""What stuck_mails' gates are for.

Each expectation fails by data in the stores or in the plan's file.
"""

from dataclasses import replace
from datetime import timedelta

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.bench.clearing import drop_marks
from mailslice.duties.stuck_mails.mails import PlannedMail, StuckPlan
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.row_file import stream_rows, write_rows
from mailslice.model.clock import system_clock
from mailslice.model.errors import GateFailed
from mailslice.model.mail import BlobId
from mailslice.model.settings import StuckMode
from mailslice.model.stages import Stage
from mailslice.stores.cassandra.own import DecisionRow
from mailslice.stores.cassandra.own.decisions import BY_A_PERSON
from mailslice.stores.cassandra.own.quarantine import State
from tests.services.duties.stuck_mails.test_recovering import A, B, held, recover

__all__ = ["recover"]
MINUTE = timedelta(minutes=1)


def folder(world, request):
    return RunFolder(artifacts(world.settings), request.duty, request.queue, request.run)


def planned(world, change=None, **params):
    """A run that has its plan, with the plan and its mails that `change` makes of them.

    Its digest is right.
    """
    request = world.request(**params)
    world.steps(request, "plan")
    if change is not None:
        files = folder(world, request)
        summary = files.read_json("plan.json")
        made = StuckPlan.model_validate(summary["decided"])
        where = files.artifacts, files.name
        plan, listed = change(made, list(stream_rows(*where, made.mails, PlannedMail)))
        file = write_rows(*where, made.mails.file, listed, PlannedMail)
        plan = plan.model_copy(update={"mails": file})
        files.write_json(
            "plan.json", {**summary, "decided": plan.as_json(), "planDigest": plan.digest}
        )
    return request


def mails(**changes):
    """A change of each mail of a plan; a change is made of the mail."""

    def changed(plan, listed):
        return plan, [
            replace(mail, **{name: make(mail) for name, make in changes.items()}) for mail in listed
        ]

    return changed


PLANS = {
    "One run decides about 1 mails at most": lambda plan, listed: (plan, listed),
    "The plan is not older than 1 hours": lambda plan, listed: (
        plan.model_copy(update={"made_at": plan.made_at - 61 * MINUTE}),
        [replace(mail, since=mail.since - 61 * MINUTE) for mail in listed],
    ),
    "Every mail is planned once": lambda plan, listed: (plan, listed[:1] * 2),
    "Every mail was held for longer than the lock timeout": mails(age_seconds=lambda _: 59.0),
    "Every mail was held before the plan was made": mails(
        since=lambda mail: mail.since + 10 * MINUTE
    ),
    "Every holder has a record": mails(worker=lambda _: "of another queue"),
    "Every action is one of the plan's mode": mails(action=lambda _: "released"),
}


@pytest.mark.parametrize("sentence", PLANS)
def test_the_check_stops_a_plan_for(world, sentence):
    items = [world.mail(), world.mail()]
    world.worker(*map(world.held, items))
    most = 1 if "at most" in sentence else 2
    request = planned(world, PLANS[sentence], most=most)
    with pytest.raises(GateFailed, match=sentence):
        world.steps(request, "check")
    assert not any(map(world.is_marked, items))


def test_the_check_stops_a_plan_whose_holders_record_is_gone(world):
    worker = world.worker(world.held(world.mail()))
    request = planned(world)
    worker.fall_silent()
    world.stores.cassandra.execute(
        f"DELETE FROM {world.settings.own.keyspace}.worker_records WHERE queuename = %s",
        [world.queue],
    )
    with pytest.raises(GateFailed, match="Every holder has a record"):
        world.steps(request, "check")


@pytest.mark.usefixtures("real_gate")
def test_great_expectations_passes_and_stops_what_the_plain_gate_does(world):
    world.worker(world.held(world.mail()), world.held(world.mail()))
    world.steps(planned(world), "check", "apply", "verify")
    world.worker(world.held(world.mail()), world.held(world.mail()))
    with pytest.raises(GateFailed, match="Every mail is planned once"):
        world.steps(planned(world, PLANS["Every mail is planned once"]), "check")


def closed(world):
    """A run that has closed a mail: (the request, the mail, its row)."""
    item = world.mail()
    world.worker(world.held(item))
    request = world.request()
    world.steps(request, "plan", "check", "apply")
    (kept,) = world.kept()
    return request, item, kept


def no_decision(world, _item, _kept):
    world.stores.cassandra.execute(f"TRUNCATE {world.settings.own.keyspace}.decisions")


def no_mark(world, item, _kept):
    drop_marks(world.stores.tables.deleted, world.queue, [item.enqueue_id])


def no_row(world, _item, kept):
    assert world.stores.own.quarantine.remove(world.queue, kept)


def half_done(world, _item, kept):
    assert world.stores.own.quarantine.move(world.queue, kept, state=State.CLOSING)


def no_content(world, _item, _kept):
    (header, body) = world.stores.own_blobs.list(f"quarantine/{world.queue}/")
    world.stores.own_blobs.delete_many([max(header.key, body.key)])


def less_content(world, _item, _kept):
    for blob in world.stores.own_blobs.list(f"quarantine/{world.queue}/"):
        world.stores.own_blobs.put(BlobId(blob.key), b"")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (no_decision, "Every decision is written down"),
        (no_mark, "has its deleted mark"),
        (no_row, "is in quarantine, and its content whole.* missing"),
        (half_done, "No decision of this run is half done"),
        (no_content, "content whole.* damaged"),
        (less_content, "content whole.* damaged"),
    ],
)
def test_verify_sees_in_the_stores_that_there_is(world, change, sentence):
    request, item, kept = closed(world)
    change(world, item, kept)
    with pytest.raises(GateFailed, match=sentence):
        world.steps(request, "verify")


def test_verify_looks_at_the_stores_and_not_at_what_apply_says(world):
    """An apply whose report names no mail."""
    request, item, _ = closed(world)
    files = folder(world, request)
    files.write_json(
        "applied.json", {**files.read_json("applied.json"), "decisions": [], "applied": 0}
    )
    assert world.steps(request, "verify")["expectations"]
    no_mark(world, item, None)
    with pytest.raises(GateFailed, match="has its deleted mark"):
        world.steps(request, "verify")


def test_verify_is_content_with_what_people_and_a_cleanup_have_done_since(world):
    request, item, kept = closed(world)
    world.stores.tables.written.delete_partition_future(world.queue, world.where, 2**62).result()
    no_mark(world, item, kept)
    assert world.steps(request, "verify")["success"]
    world.quarantine.release(kept)
    row = DecisionRow(
        *(item.enqueue_id, "m", "loaded", "w", MINUTE),
        verdict=BY_A_PERSON,
        action="released",
        why="by hand",
        decided=system_clock(),
    )
    world.stores.own.decisions.save(world.queue, row, MINUTE)
    assert world.steps(request, "verify")["success"]
    assert len(list(MailQueue(world.stores, world.queue, system_clock).browse())) == 1


@pytest.mark.parametrize("marks", [{"sent": (A, B)}, {"sending": (A, B)}])
def test_verify_sees_that_what_stage_marks_end_has_no_deleted_mark(recover, marks):
    item, _, _ = held(recover, A, B, **marks)
    request = recover.request(mode=StuckMode.RECOVER.value)
    recover.steps(request, "plan", "check", "apply", "verify")
    assert recover.stores.own.mail_stages.get(recover.queue, item.enqueue_id).stage in {
        Stage.SENT,
        Stage.FAILED,
    }
    no_mark(recover, item, None)
    with pytest.raises(GateFailed, match="has its deleted mark"):
        recover.steps(request, "verify")


def test_verify_sees_that_recipients_in_doubt_have_no_row(recover):
    held(recover, A, B, sending=(A, B))
    request = recover.request(mode=StuckMode.RECOVER.value)
    recover.steps(request, "plan", "check", "apply")
    (kept,) = recover.kept()
    no_row(recover, None, kept)
    with pytest.raises(GateFailed, match=r"is in quarantine.* missing"):
        recover.steps(request, "verify")
