"""The second of two reads: each candidate's row and mark once more, and its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from mailslice.admin.evidence import done_by_stages, missing_content, still_live
from mailslice.duties.queue_audit.candidates import AuditSpec, OldMails
from mailslice.duties.queue_audit.judge import Evidence, Facts, content_matters, judge
from mailslice.engine.frames import Session, run_on_keys, shared
from mailslice.engine.partition_scan import instant, millis
from mailslice.engine.row_files import PlanReader
from mailslice.engine.worker_stores import stores_of
from mailslice.maintenance.row_file import RowFile, write_rows
from mailslice.model.mail import EnqueueId, Partition, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.verdicts import MailVerdict, Verdict

if TYPE_CHECKING:
    from mailslice.stores import Stores

_BATCH = 1000
_REPUBLISHABLE = frozenset({Verdict.LOST, Verdict.LOST_OR_GHOST})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one task did: its file, mails by verdict, and mails that are not live any more."""

    file: RowFile
    verdicts: Mapping[str, int]
    deleted: int


def classify_all(
    spark: Session, spec: AuditSpec, candidates: Sequence[OldMails], evidence: Evidence
) -> list[Outcome]:
    """The verdicts on all candidates."""
    with shared(spark, evidence) as known:

        def read(batches: Iterator[Sequence[OldMails]]) -> Iterator[Outcome]:
            judging = _Judging(spec, stores_of(spec.settings), known())
            yield judging.outcome(chain.from_iterable(batches))

        return run_on_keys(spark, candidates, read)


def total(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Counts by verdict, zeros too."""
    counts: Counter[str] = Counter(dict.fromkeys(Verdict, 0))
    for outcome in outcomes:
        counts.update(outcome.verdicts)
    return {verdict.value: counts[verdict] for verdict in Verdict}


@dataclass
class _Judging:
    """One task."""

    spec: AuditSpec
    stores: Stores
    evidence: Evidence
    verdicts: Counter[str] = field(default_factory=Counter)
    deleted: int = 0

    def outcome(self, candidates: Iterable[OldMails]) -> Outcome:
        """Writes a file, of a name of its own: a task may be tried again."""
        spec, file = self.spec, f"{self.spec.plan_folder}/verdicts-{uuid4()}.parquet"
        rows = write_rows(spec.location, spec.folder, file, self._rows(candidates), MailVerdict)
        return Outcome(rows, dict(self.verdicts), self.deleted)

    def _rows(self, candidates: Iterable[OldMails]) -> Iterator[MailVerdict]:
        with PlanReader(self.spec.location, self.spec.path) as reader:
            for mails in candidates:
                for ids in _ids(reader, mails):
                    classified = self._classify(mails, ids)
                    self.verdicts.update(mail.verdict for mail in classified)
                    self.deleted += len(ids) - len(classified)
                    yield from classified

    def _classify(self, mails: OldMails, ids: list[EnqueueId]) -> list[MailVerdict]:
        spec, stores, queue = self.spec, self.stores, self.spec.queue
        partition = (QueueTable(mails.table), Partition(instant(mails.slice_ms), mails.bucket))
        rows = still_live(stores.tables, queue, spec.window, partition, ids)
        due = stores.own.delayed_mails.waiting(queue, rows)
        verdicts: dict[EnqueueId, tuple[Verdict, str]] = {}
        for one, row in rows.items():
            facts = Facts(one, row.enqueued_time, due.get(one), mails.delayed)
            verdicts[one] = judge(facts, self.evidence)
        for one, done in done_by_stages(stores, queue, _republishable(verdicts)).items():
            verdicts[one] = Verdict.GHOST, f"{done}, and its deleted mark is missing"
        loaded = [row for one, row in rows.items() if content_matters(verdicts[one][0])]
        for one, missing in missing_content(spec.settings, loaded).items():
            verdict, why = verdicts[one]
            verdicts[one] = Verdict.BARE, f"{missing}; else {verdict.value}: {why}"
        decisions = stores.own.republished_mails.some(queue, _republishable(verdicts))
        return [
            _mail_verdict(
                mails.table, rows[one], verdict, decisions[one].decision if one in decisions else ""
            )
            for one, verdict in verdicts.items()
        ]


def _republishable(verdicts: Mapping[EnqueueId, tuple[Verdict, str]]) -> list[EnqueueId]:
    return [one for one, (verdict, _) in verdicts.items() if verdict in _REPUBLISHABLE]


def _ids(reader: PlanReader, mails: OldMails) -> Iterator[list[EnqueueId]]:
    for table in reader.groups(mails.part):
        ids = [EnqueueId(UUID(text)) for text in table.column("enqueue_id").to_pylist()]
        yield from (ids[at : at + _BATCH] for at in range(0, len(ids), _BATCH))


def _mail_verdict(
    table: str, row: ViewRow, verdict: tuple[Verdict, str], decision: str
) -> MailVerdict:
    return MailVerdict(
        str(row.enqueue_id),
        row.item.mail.name,
        verdict[0].value,
        verdict[1],
        table,
        millis(row.partition.slice_start),
        row.partition.bucket,
        millis(row.enqueued_time),
        decision,
    )
