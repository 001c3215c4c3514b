"""Step 4: what was published is in the ledger of decisions, and has its row or its deleted mark."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from mailslice.duties.republish_lost.plan_file import Plan, read_plan
from mailslice.duty.context import StepContext
from mailslice.duty.gates import judged
from mailslice.model.mail import EnqueueId, Place
from mailslice.model.names import QueueTable
from mailslice.model.slices import is_live
from mailslice.quality.gate import Expectation, Frame
from mailslice.queue.configuration import view_shape
from mailslice.spark.slices import instant
from mailslice.spark.verdict_files import Judged
from mailslice.stores.cassandra.own import PublishState


def run(context: StepContext) -> dict[str, Any]:
    """Whether the invariants hold. Raises GateFailed."""
    plan = read_plan(context.need("plan"), context.request.run, context.queue)
    return judged(context, "verify", [after(context, plan)])


def after(context: StepContext, plan: Plan) -> Frame:
    """One row: what apply said, beside what the ledger of decisions and the view say now."""
    mails = {EnqueueId(UUID(mail.enqueue_id)): mail for mail in plan.mails(context.folder)}
    decisions = context.stores.own.republished_mails.some(context.queue, list(mails))
    published = [
        enqueue_id
        for enqueue_id, each in decisions.items()
        if each.run == plan.run and each.state is PublishState.PUBLISHED
    ]
    row = {
        "unrecorded": max(0, context.need("apply")["applied"] - len(published)),
        "vanished": _vanished(context, {one: mails[one] for one in published}),
    }
    expect = [
        Expectation.equal(
            "unrecorded",
            0,
            "Every mail that was published is in the ledger of decisions as published by this run.",
        ),
        Expectation.equal(
            "vanished",
            0,
            "Every mail that was published has its row, or was done and has its deleted mark.",
        ),
    ]
    return Frame("after", [row], expect)


def _vanished(context: StepContext, published: dict[EnqueueId, Judged]) -> int:
    """Mails with neither row nor mark. Marks are looked for last: who ends a mail writes its mark, and a cleanup removes the row first."""
    tables, queue = context.stores.tables, context.queue
    there: set[EnqueueId] = set()
    for rows in tables.existing:
        asked = [
            (Place(instant(mail.slice_ms), mail.bucket), [one])
            for one, mail in published.items()
            if QueueTable(mail.table) is rows.table
        ]
        there |= {row.enqueue_id for row in rows.some(queue, asked)} if asked else set()
    gone = [one for one in published if one not in there]
    if not gone:
        return 0
    unmarked = set(gone) - tables.deleted.marked(queue, gone)
    # Behind browseStart James drops rows with their marks, and goes there once the mail is done.
    window = view_shape(context.stores).window
    browse = tables.browse_starts.read(queue)
    return sum(
        browse is None or is_live(instant(published[one].slice_ms), browse.value, window)
        for one in unmarked
    )
