"""The duty: publish again the mails that an audit proved lost, if they are still lost."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from mailslice.admin.queues import require
from mailslice.checks.expectations import Expectation, Frame
from mailslice.duties.republish_lost import publication
from mailslice.duties.republish_lost.params import Params
from mailslice.duties.republish_lost.publication import Prover, Publication, SkipReason
from mailslice.engine.row_files import RowFile
from mailslice.maintenance import audits
from mailslice.maintenance.artifacts import iso
from mailslice.maintenance.audits import AuditPlan
from mailslice.maintenance.duty import Duty
from mailslice.maintenance.plan import QueuePlan
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Result, Summaries
from mailslice.maintenance.row_file import schema_of
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.batches import batches
from mailslice.model.command_line import command_line
from mailslice.model.durations import format_duration
from mailslice.model.errors import PlanRefused
from mailslice.model.mail import EnqueueId
from mailslice.model.verdicts import MailVerdict, Verdict
from mailslice.stores.cassandra.own import PublishState

MAX_AUDIT_AGE = timedelta(hours=24)
_LOST = (Verdict.LOST, Verdict.LOST_OR_GHOST)
_EXAMINED = frozenset({*_LOST, Verdict.BARE})
_HOUR = timedelta(hours=1)
_AT_ONCE = 1000


class RepublishPlan(QueuePlan):
    """What one run may publish, by which audit."""

    audit: str
    """The run of the audit that proved the mails lost."""
    audit_digest: str
    accept_duplicates: bool
    repeat_unknown: bool
    mails: RowFile
    """Rows: MailVerdict, as in the audit."""

    @property
    def planned(self) -> int:
        return self.mails.rows


class RepublishLost(Duty[RepublishPlan]):
    """Each mail is proved lost again, and published once, under its own enqueue id."""

    plan_type = RepublishPlan
    items = "mails"
    lock_patience = audits.CENSUS_PATIENCE
    unfinished = "what it published is in the ledger of decisions, and the next run goes on"

    def __init__(self, concurrency: int = publication.CONCURRENCY) -> None:
        self._concurrency = concurrency

    def locks(self, request: RunRequest) -> tuple[str, ...]:
        return (audits.lock_name(request.queue),)

    def plan(self, run: Run) -> RepublishPlan:
        """Raises UnknownQueue; BadInput if `audit` is no audit; PlanRefused without a valid one."""
        require(run.stores, run.queue)
        params, audit = run.params(Params), _audit(run)
        skipped: Counter[str] = Counter()
        unknown: list[str] = []

        def on_skip(enqueue_id: str, why: SkipReason) -> None:
            skipped[why.value] += 1
            if why is SkipReason.OUTCOME_UNKNOWN and len(unknown) < publication.MAX_NAMED:
                unknown.append(enqueue_id)

        prover = Prover(run, on_skip)
        examined = (mail for mail in audit.mails(run.folder.artifacts) if mail.verdict in _EXAMINED)
        lost = (proved.mail for batch in prover.prove(examined) for proved in batch)
        file = run.write_rows("mails", lost, MailVerdict)
        run.report(
            audit={
                "run": audit.run,
                "madeAt": iso(audit.made_at),
                "shared": audit.shared,
                "verdicts": dict(audit.verdicts),
            },
            skippedBy=dict(skipped),
            outcomeUnknown=unknown,
            inDelayQueues=prover.in_delay_queues,
            message=_message(file.rows, audit, skipped),
        )
        return RepublishPlan(
            run=run.request.run,
            queue=run.queue,
            made_at=run.clock(),
            audit=audit.run,
            audit_digest=audit.digest,
            accept_duplicates=params.accept_duplicates,
            repeat_unknown=params.repeat_unknown,
            mails=file,
        )

    def check(self, run: Run, plan: RepublishPlan) -> Iterable[Frame]:
        """Checks the plan's mails by the audit's files, and that the audit is unchanged."""
        audit = audits.audit_of(run.stores, run.queue, plan.audit)
        yield _planned_mails(run, plan, audit)
        same = "The audit is the very one that the plan was made from."
        census = "The audit took a census: without one nothing is proved lost."
        yield Frame.zeros(
            "audit",
            other_audit=(int(audit.digest != plan.audit_digest), same),
            audit_without_census=(int(not audit.census), census),
        )

    def apply(self, run: Run, plan: RepublishPlan, progress: Progress) -> None:
        """Raises StoreUnavailable; another try goes on from there."""
        run.require_clock()
        Publication(run, progress, self._concurrency).publish_all(
            run.stream_rows(plan.mails, MailVerdict)
        )

    def verify(self, run: Run, plan: RepublishPlan, result: Result) -> Iterable[Frame]:
        """Compares what apply reported with the ledger of decisions. The view proves nothing: a
        mail may be delivered, and then a cleanup may drop its row and its mark.
        """
        if not result.applied:
            return
        published = 0
        for mails in batches(run.stream_rows(plan.mails, MailVerdict), _AT_ONCE):
            ids = [EnqueueId(UUID(mail.enqueue_id)) for mail in mails]
            decisions = run.stores.own.republished_mails.by_ids(run.queue, ids)
            published += sum(
                (decision.run, decision.state) == (plan.run, PublishState.PUBLISHED)
                for decision in decisions.values()
            )
        recorded = (
            "Every mail that was published is in the ledger of decisions as published by this run."
        )
        yield Frame.zeros("after", unrecorded=(max(0, result.applied - published), recorded))

    def describe(self, steps: Summaries) -> str:
        applied = steps.result.applied
        return "; ".join([f"{applied} mails published", *self._rest(steps)]) if applied else ""

    def nothing(self, steps: Summaries) -> str:
        words = f"nothing to do: audit {steps.plan['audit']['run']} leaves no mail to publish"
        words = "no mail was published" if steps.result.remaining else words
        return "; ".join([words, *self._rest(steps)])

    def report_fields(self, steps: Summaries) -> dict[str, Any]:
        """Skipped and unknown mails of plan and apply. `nbRequeuedMails`: James' `applied`."""
        applied = steps.result.applied
        skipped = Counter(steps.plan.get("skippedBy", {})) + Counter(steps.result.skipped)
        unknown = (steps.plan, steps.result.fields)
        return {
            "nbRequeuedMails": applied,
            "skipped": skipped.total(),
            "skippedBy": dict(skipped),
            "outcomeUnknown": [one for step in unknown for one in step.get("outcomeUnknown", ())],
            "audit": steps.plan.get("audit"),
        }

    def conclude(self, run: Run, steps: Summaries) -> None:
        del steps
        params = run.params(Params)
        older = None if params.older_than is None else format_duration(params.older_than)
        run.report(olderThan=older, acceptDuplicates=params.accept_duplicates)

    def _rest(self, steps: Summaries) -> Iterator[str]:
        fields = self.report_fields(steps)
        for reason, count in sorted(fields["skippedBy"].items()):
            yield f"{count} skipped: {reason}"
        if remaining := steps.result.remaining:
            yield f"{remaining} left to the next run by the time limit"
        if ids := fields["outcomeUnknown"]:
            yield f"some got no confirm, such as {ids[0]}: --repeat-unknown publishes them again"


DUTY = RepublishLost()


def _audit(run: Run) -> AuditPlan:
    """The audit to act by: it took a census, and is not older than a day."""
    stores, queue, name = run.stores, run.queue, run.params(Params).audit
    remedy = f"`{command_line('duty run queue_audit --queue', queue, '--census')}`"
    audit = (
        audits.newest_audit(stores, queue, census_since=run.clock() - MAX_AUDIT_AGE)
        if name is None
        else audits.named_audit(stores, queue, name)
    )
    if audit is None:
        problem = f"no audit of queue {queue} that took a census is done: nothing is proved lost"
        raise PlanRefused(f"{problem}; {remedy}")
    if not audit.census:
        raise PlanRefused(f"audit {audit.run} took no census, so it proved no mail lost; {remedy}")
    age = run.clock() - audit.made_at
    if age > MAX_AUDIT_AGE:
        allowed = f"allowed are {MAX_AUDIT_AGE / _HOUR:.0f} h"
        raise PlanRefused(f"audit {audit.run} is {age / _HOUR:.1f} h old; {allowed}; {remedy}")
    return audit


def _message(planned: int, audit: AuditPlan, skipped: Counter[str]) -> str:
    words = [f"{planned} mails that audit {audit.run} proved lost can be published"]
    words += [f"{count} skipped: {reason}" for reason, count in sorted(skipped.items())]
    if skipped[SkipReason.OUTCOME_UNKNOWN]:
        words.append(
            "an earlier publish of some was never confirmed: look whether they were delivered, "
            "then decide by --repeat-unknown"
        )
    if skipped[SkipReason.DOUBTFUL]:
        words.append(
            "James may have delivered those that are lost or ghost: --accept-duplicates publishes "
            "them, too"
        )
    return "; ".join(words)


def _planned_mails(run: Run, plan: RepublishPlan, audit: AuditPlan) -> Frame:
    """One row a mail of the plan's file, with what the audit's own files say of it."""
    tables = chain([schema_of(MailVerdict).empty_table()], run.read_tables(plan.mails))
    rows = pa.concat_tables(table.select(["enqueue_id", "verdict"]) for table in tables)
    verdicts = audit.mails(run.folder.artifacts)
    lost = pa.array((mail.enqueue_id for mail in verdicts if mail.verdict in _LOST), "string")
    proved = pc.cast(pc.is_in(rows["enqueue_id"], value_set=lost), "int64")
    allowed = _LOST if plan.accept_duplicates else (Verdict.LOST,)
    expect = [
        Expectation.unique("enqueue_id", "No mail is listed twice."),
        Expectation.one_of(
            "verdict",
            [verdict.value for verdict in allowed],
            "Every mail was called lost; one that James may have delivered only where duplicates "
            "are accepted.",
        ),
        Expectation.equal("of_the_audit", 1, "The audit's own files call every planned mail lost."),
    ]
    rows = rows.append_column("of_the_audit", proved)
    return Frame("mails", rows, expect, may_be_empty=not plan.planned)
