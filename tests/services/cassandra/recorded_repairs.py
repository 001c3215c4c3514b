"""Writes records of repairs as Cassandra does, for tests on one node, which cannot repair."""

import uuid
from datetime import UTC, datetime, timedelta

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from mailslice.stores.cassandra.ranges import HIGHEST, LOWEST

MIDDLE = -3074457345618258603
WHOLE = frozenset({f"({LOWEST},{MIDDLE}]", f"({MIDDLE},{HIGHEST}]"})
_INSERT = """INSERT INTO system_distributed.parent_repair_history
    (parent_id, keyspace_name, columnfamily_names, started_at, finished_at, options,
     successful_ranges, exception_message)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s) USING TTL 600"""


def record(
    session,
    *,
    keyspace,
    tables,
    began=None,
    ranges=WHOLE,
    finished=True,
    problem=None,
    **options,
):
    """Records one repair; by default one of all ranges that succeeded."""
    began = began or datetime.now(UTC)
    values = [
        uuid.uuid1(),
        keyspace,
        set(tables),
        began,
        began + timedelta(seconds=1) if finished else None,
        {"primaryRange": "false", "dataCenters": "", "hosts": "", **options},
        set(ranges),
        problem,
    ]
    session.execute(SimpleStatement(_INSERT, consistency_level=ConsistencyLevel.ONE), values)
