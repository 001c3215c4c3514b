"""The second of two reads: each candidate's row and mark once more, what else is known of it, and its verdict, in Python workers of Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from mailslice.duties.queue_audit.candidates import OldPlace
from mailslice.duties.queue_audit.judge import Evidence, Facts, content_matters, judge
from mailslice.model.mail import EnqueueId, Place, QueueName, ViewRow
from mailslice.model.names import QueueTable
from mailslice.model.settings import Settings
from mailslice.model.verdicts import Verdict
from mailslice.queue.proofs import done_by_stages, missing_content, still_live
from mailslice.spark.frames import Session, run_on_keys, shared
from mailslice.spark.in_worker import stores_of
from mailslice.spark.plan_files import Digest, Location, PlanReader
from mailslice.spark.slices import instant, millis
from mailslice.spark.verdict_files import Judged, JudgedWriter

if TYPE_CHECKING:
    from mailslice.stores import Stores

_AT_A_TIME = 1000
_REPUBLISHABLE = frozenset({Verdict.LOST, Verdict.LOST_OR_GHOST})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one task did: `judged` mails, `gone` ones that are not live any more, counts by verdict, its file (empty: no mail) and its digest."""

    judged: int
    gone: int
    verdicts: dict[str, int]
    file: str
    digest: Digest


@dataclass(frozen=True, slots=True)
class Judging:
    """Which queue, its slice window, where the candidates are, where the verdicts go."""

    settings: Settings
    queue: QueueName
    window: timedelta
    place: Location
    candidates: str
    folder: str


def judge_all(
    spark: Session, what: Judging, places: Sequence[OldPlace], evidence: Evidence
) -> list[Outcome]:
    """The verdicts on all mails of the places."""
    with shared(spark, evidence) as known:

        def read(batches: Iterator[Sequence[OldPlace]]) -> Iterator[Outcome]:
            places = chain.from_iterable(batches)
            yield _task(what, stores_of(what.settings), known(), places)

        return run_on_keys(spark, places, read)


def total(outcomes: Iterable[Outcome]) -> tuple[dict[str, int], Digest]:
    """Counts by verdict, every verdict told, and the digest of all rows."""
    counts: Counter[str] = Counter({verdict.value: 0 for verdict in Verdict})
    digest = Digest()
    for each in outcomes:
        counts.update(each.verdicts)
        digest += each.digest
    return dict(counts), digest


def _task(what: Judging, stores: Stores, evidence: Evidence, places: Iterable[OldPlace]) -> Outcome:
    file = f"part-{uuid4()}.parquet"
    writer = JudgedWriter(what.place, f"{what.folder}/{file}")
    counts: Counter[str] = Counter()
    looked_at = 0
    try:
        with PlanReader(what.place, what.candidates) as reader:
            for place in places:
                for ids in _ids(reader, place):
                    looked_at += len(ids)
                    judged = _judge_some(what, stores, evidence, place, ids)
                    counts.update(row.verdict for row in judged)
                    writer.add(judged)
    finally:
        writer.close()
    judged_in_all = counts.total()
    return Outcome(
        judged_in_all,
        looked_at - judged_in_all,
        dict(counts),
        file if judged_in_all else "",
        writer.digest,
    )


def _ids(reader: PlanReader, place: OldPlace) -> Iterator[list[EnqueueId]]:
    for table in reader.groups(place.part):
        ids = [EnqueueId(UUID(text)) for text in table.column("enqueue_id").to_pylist()]
        yield from (ids[at : at + _AT_A_TIME] for at in range(0, len(ids), _AT_A_TIME))


def _judge_some(
    what: Judging, stores: Stores, evidence: Evidence, place: OldPlace, ids: list[EnqueueId]
) -> list[Judged]:
    where = (QueueTable(place.table), Place(instant(place.slice_ms), place.bucket))
    rows = still_live(stores.tables, what.queue, what.window, where, ids)
    due = stores.own.delayed_mails.waiting(what.queue, rows)
    found: dict[EnqueueId, tuple[Verdict, str]] = {}
    for one, row in rows.items():
        facts = Facts(one, row.enqueued_time, due.get(one), place.delayed)
        found[one] = judge(facts, evidence)
    nowhere = [one for one, (verdict, _) in found.items() if verdict in _REPUBLISHABLE]
    for one, done in done_by_stages(stores, what.queue, nowhere).items():
        found[one] = Verdict.GHOST, f"{done}, and its deleted mark is missing"
    for one, missing in missing_content(
        what.settings, [row for one, row in rows.items() if content_matters(found[one][0])]
    ).items():
        found[one] = Verdict.BARE, f"{missing}; else {found[one][0].value}: {found[one][1]}"
    decided = stores.own.republished_mails.some(
        what.queue, [one for one, (verdict, _) in found.items() if verdict in _REPUBLISHABLE]
    )
    decisions = {one: decision.decision for one, decision in decided.items()}
    return [
        _judged(place, rows[one], verdict, why, decisions.get(one, ""))
        for one, (verdict, why) in found.items()
    ]


def _judged(place: OldPlace, row: ViewRow, verdict: Verdict, why: str, decision: str) -> Judged:
    start, enqueued = millis(row.place.slice_start), millis(row.enqueued_time)
    return Judged(
        str(row.enqueue_id),
        row.item.mail.name,
        verdict.value,
        why,
        place.table,
        start,
        row.place.bucket,
        enqueued,
        decision,
    )
