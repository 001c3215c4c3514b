"""Judge the unreferenced blobs and write those that are orphans to the plan's files, in workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from mailslice.duties.blob_gc.classify import DOUBTFUL, ORPHAN, UNKNOWN, Rules, Tally, generation_of
from mailslice.duties.blob_gc.plan_files import CANDIDATE, DELETE, Blob, BlobWriter, Group
from mailslice.spark.frames import Session
from mailslice.spark.plan_files import Location
from mailslice.spark.read_once import Summary, give

if TYPE_CHECKING:
    import pyarrow as pa


def write_plan(
    spark: Session,
    blobs: Any,
    place: Location,
    folder: str,
    rules: Rules,
    *,
    spared: frozenset[str],
) -> tuple[Tally, list[Group]]:
    """Write the orphans among unreferenced blobs (key, size, modified_s, doubtful, since_ms): what there is of each kind, and the groups that were written.

    A candidate whose key is in `spared` was referred to meanwhile: it waits anew.
    """

    def work(batches: Iterator[pa.Table]) -> Iterator[Summary]:
        tally = Tally()
        files = {kind: BlobWriter(place, folder, kind) for kind in (DELETE, CANDIDATE)}
        for row in (row for batch in batches for row in batch.to_pylist()):
            blob = Blob(
                row["key"],
                row["size"],
                row["modified_s"],
                None if row["key"] in spared else row["since_ms"],
            )
            kind = rules.kind(blob.key, blob.modified_s, doubtful=bool(row["doubtful"]))
            tally.add(kind, blob.key, blob.size, blob.modified_s, rules)
            if kind == ORPHAN:
                due = DELETE if rules.due(blob.since_ms) else CANDIDATE
                files[due].add(blob)
                tally.show("planned" if due == DELETE else "waiting", **_shown(blob, rules))
                tally.planned(due, blob.size)
            elif kind in {UNKNOWN, DOUBTFUL}:
                tally.show(kind, **_shown(blob, rules))
        yield {
            "tally": tally.as_json(),
            "groups": [astuple(group) for writer in files.values() for group in writer.close()],
        }

    tally, groups = Tally(), list[Group]()
    for summary in give(spark, blobs, work):
        tally.merge(summary["tally"])
        groups += [Group(*each) for each in summary["groups"]]
    return tally, sorted(groups, key=lambda group: (group.file, group.number))


def _shown(blob: Blob, rules: Rules) -> dict[str, Any]:
    return {
        "key": blob.key,
        "bytes": blob.size,
        "generation": generation_of(blob.key),
        "age": rules.age(blob.modified_s),
    }
