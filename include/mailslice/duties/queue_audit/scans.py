"""The two reads of an audit.

The first finds live mails that are old enough and writes their ids to files. The second reads each
one's row and mark once more, and classifies it by the evidence that was gathered in between.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from uuid import UUID, uuid4

from mailslice.admin.evidence import done_by_stages, missing_content, still_live
from mailslice.codec.row import epoch_ms, epoch_us
from mailslice.duties.queue_audit.rules import CONTENT_MATTERS, Evidence, MailFacts, classify
from mailslice.engine.frames import Session, run_on_keys, shared
from mailslice.engine.partition_scan import READS_IN_FLIGHT, PartitionKey, Spool, pages_by_partition
from mailslice.engine.row_files import PlanFiles, PlanPart, PlanReader, PlanWriter, RowFile
from mailslice.engine.worker_stores import stores_of
from mailslice.maintenance.artifacts import PLAN_FOLDER
from mailslice.maintenance.row_file import write_rows
from mailslice.model.batches import batches
from mailslice.model.mail import EnqueueId, Partition
from mailslice.model.verdicts import MailVerdict, Verdict
from mailslice.stores import Stores
from mailslice.stores.cassandra.own import DelayState

_IDS_A_BATCH = 1000
_REPUBLISHABLE = frozenset({Verdict.LOST, Verdict.LOST_OR_GHOST})


@dataclass(frozen=True, slots=True)
class AuditSpec(PlanFiles):
    """Input of tasks. Mails enqueued until `latest` are audited; the audit began at `began`."""

    window: timedelta
    buckets: int
    latest: datetime
    began: datetime

    @property
    def path(self) -> str:
        return f"{self.folder}/{PLAN_FOLDER}"


@dataclass(frozen=True, slots=True)
class OldMails(PartitionKey):
    """The old live mails of one partition: those that were delayed at this read, or the others.

    A partition without any is reported, too. `part` holds the `count` ids. `youngest_ms` is their
    latest enqueued time.
    """

    delayed: bool
    count: int
    youngest_ms: int
    part: PlanPart


def find_old_mails(session: Session, spec: AuditSpec, slices: Sequence[datetime]) -> list[OldMails]:
    """The old live mails of every table and bucket of the slices, each read once."""

    def read(starts: Iterator[Sequence[datetime]]) -> Iterator[OldMails]:
        stores = stores_of(spec.settings)
        with PlanWriter(spec.location, spec.path) as writer:
            reader = _FirstRead(spec, stores, writer)
            old_mails = [
                old for start in chain.from_iterable(starts) for old in reader.slice(start)
            ]
        yield from old_mails  # the file is whole by now

    return run_on_keys(session, slices, read)


@dataclass(frozen=True, slots=True)
class _FirstRead:
    spec: AuditSpec
    stores: Stores
    writer: PlanWriter

    def slice(self, start: datetime) -> Iterator[OldMails]:
        """All partitions of a slice. A mail that has a row in both tables counts once."""
        queue, tables = self.spec.queue, self.stores.tables.existing
        partitions = [Partition(start, bucket) for bucket in range(self.spec.buckets)]
        read_ids: set[EnqueueId] = set()
        for table in tables:
            for partition, pages in pages_by_partition(table.ids_of, queue, partitions):
                spools = Spool(), Spool()
                for page in pages:
                    times = {row.enqueue_id: row.enqueued_time or start for row in page}
                    latest = self.spec.latest
                    old = {k: at for k, at in times.items() if at <= latest and k not in read_ids}
                    if len(tables) > 1:
                        read_ids |= old.keys()
                    self._add(old, spools)
                yield from self._written(table.table.value, partition, spools)

    def _add(self, old: Mapping[EnqueueId, datetime], spools: tuple[Spool, Spool]) -> None:
        """Add live mails with enqueued times in ms; delayed mails go to the second spool."""
        if not old:
            return
        queue, tables = self.spec.queue, self.stores.tables
        marked = tables.deleted.marked(queue, list(old), READS_IN_FLIGHT)
        live = [enqueue_id for enqueue_id in old if enqueue_id not in marked]
        delayed = self.stores.own.delayed_mails.waiting(queue, live)
        for enqueue_id in live:
            spools[enqueue_id in delayed].add(enqueue_id, epoch_ms(old[enqueue_id]))

    def _written(
        self, table: str, partition: Partition, spools: tuple[Spool, Spool]
    ) -> Iterator[OldMails]:
        start = epoch_ms(partition.slice_start)
        for delayed, spool in zip((False, True), spools, strict=True):
            if spool.count or not delayed:
                part, _ = self.writer.add(table, start, partition.bucket, spool.chunks())
                yield OldMails(
                    table, start, partition.bucket, delayed, spool.count, spool.newest_us, part
                )
            spool.close()


@dataclass(frozen=True, slots=True)
class ClassifiedMails:
    """The result of a task: its file, counts by verdict, and how many mails are no longer live."""

    file: RowFile
    verdicts: Mapping[str, int]
    deleted: int


def classify_all(
    session: Session, spec: AuditSpec, candidates: Sequence[OldMails], evidence: Evidence
) -> list[ClassifiedMails]:
    with shared(session, evidence) as evidence_of:

        def read(keys: Iterator[Sequence[OldMails]]) -> Iterator[ClassifiedMails]:
            second = _SecondRead(spec, stores_of(spec.settings), evidence_of())
            yield second.classified(chain.from_iterable(keys))

        return run_on_keys(session, candidates, read)


@dataclass
class _SecondRead:
    """The second read of one task."""

    spec: AuditSpec
    stores: Stores
    evidence: Evidence
    verdicts: Counter[str] = field(default_factory=Counter)
    deleted: int = 0

    def classified(self, candidates: Iterable[OldMails]) -> ClassifiedMails:
        """Write a file. Its name is unique, because a task may be tried again."""
        spec, file = self.spec, f"{PLAN_FOLDER}/verdicts-{uuid4()}.parquet"
        rows = write_rows(spec.location, spec.folder, file, self._rows(candidates), MailVerdict)
        return ClassifiedMails(rows, dict(self.verdicts), self.deleted)

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
        partitions = dict.fromkeys(ids, mails.partition)
        rows = still_live(stores.tables, queue, spec.window, partitions)
        states = stores.own.delayed_mails.states(queue, rows)
        since_us = epoch_us(spec.began - spec.settings.duty.grace / 4)  # see Run.require_clock
        verdicts: dict[EnqueueId, tuple[Verdict, str]] = {}
        for id_, row in rows.items():
            state = states.get(id_, DelayState())
            was_delayed = mails.delayed or state.written_us >= since_us
            facts = MailFacts(id_, row.enqueued_time, state.due, was_delayed)
            verdicts[id_] = classify(facts, self.evidence)
        for id_, done in done_by_stages(stores, queue, _republishable(verdicts)).items():
            verdicts[id_] = Verdict.GHOST, f"{done}, and its deleted mark is missing"
        loaded = [row for id_, row in rows.items() if verdicts[id_][0] in CONTENT_MATTERS]
        missing, unanswered = missing_content(spec.settings, loaded)
        for id_, words in missing.items():
            verdict, why = verdicts[id_]
            verdicts[id_] = Verdict.BARE, f"{words}; else {verdict.value}: {why}"
        for id_ in unanswered:
            verdict, why = verdicts[id_]
            verdicts[id_] = verdict, f"{why}; the content store gives no answer for its content"
        decisions = stores.own.republished_mails.by_ids(queue, _republishable(verdicts))
        return [
            MailVerdict(
                str(id_),
                rows[id_].item.mail.name,
                verdict.value,
                why,
                mails.table,
                mails.slice_ms,
                mails.bucket,
                epoch_ms(rows[id_].enqueued_time),
                decisions[id_].decision if id_ in decisions else "",
                states[id_].written_us if id_ in states else 0,
            )
            for id_, (verdict, why) in verdicts.items()
        ]


def _republishable(verdicts: Mapping[EnqueueId, tuple[Verdict, str]]) -> list[EnqueueId]:
    return [id_ for id_, (verdict, _) in verdicts.items() if verdict in _REPUBLISHABLE]


def _ids(reader: PlanReader, mails: OldMails) -> Iterator[list[EnqueueId]]:
    for table in reader.groups(mails.part):
        texts = table.column("enqueue_id").to_pylist()
        yield from batches((EnqueueId(UUID(text)) for text in texts), _IDS_A_BATCH)
