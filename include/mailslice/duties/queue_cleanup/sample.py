"""Random planned rows, for looks at the stores that do not rest on what a step says of itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from uuid import UUID

from mailslice.duties.queue_cleanup.plan_file import PARTS, PlannedPlace, SomeRows
from mailslice.duty.context import StepContext
from mailslice.model.mail import EnqueueId
from mailslice.model.names import QueueTable
from mailslice.spark.plan_files import PlanPart, PlanReader

PLACES, ROWS_A_PLACE = 50, 20


def rows_of(context: StepContext, places: Sequence[PlannedPlace]) -> list[SomeRows]:
    """At most ROWS_A_PLACE rows of each of at most PLACES of these places, by chance."""
    chosen = random.sample(places, min(PLACES, len(places)))
    location, folder = context.folder.artifacts, context.folder.file(PARTS)
    with PlanReader(location, folder) as reader:
        return list(_rows(reader, chosen))


def _rows(reader: PlanReader, places: Sequence[PlannedPlace]) -> Iterator[SomeRows]:
    for each in sorted(places, key=lambda each: (each.part.file, each.part.first)):
        group = each.part.first + random.randrange(each.part.groups)
        (table,) = reader.groups(PlanPart(each.part.file, group, 1))
        column = table.column("enqueue_id")
        rows = random.sample(range(len(column)), min(ROWS_A_PLACE, len(column)))
        ids = tuple(EnqueueId(UUID(column[row].as_py())) for row in rows)
        yield SomeRows(each.table, each.place, ids)


def ids_there(context: StepContext, rows: Sequence[SomeRows]) -> set[EnqueueId]:
    """Which of these have a row now, by key."""
    tables = context.stores.tables
    return {
        row.enqueue_id
        for each in rows
        for _, page in (tables.v3 if each.table is QueueTable.V3 else tables.v4).some_ids(
            context.queue, [(each.place, each.ids)]
        )
        for row in page
    }
