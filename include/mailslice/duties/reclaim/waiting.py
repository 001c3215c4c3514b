"""Estimates how many bytes are reclaimable, and which nodes are due. Pure: from earlier reports.

CQL reports the size of a table on a node, not how much of it is deleted. The ledger reports what
cleanups deleted since the last reclaim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

MARK_BYTES = 45
"""Of a deleted mark on disk, about; its tombstone takes as much."""
TOMBSTONES = timedelta(days=10)
"""gc_grace of James' tables: older tombstones of marks may go, too."""
_MIB = 1024 * 1024


def deleted_bytes(cleanups: Iterable[Mapping[str, Any]], since: datetime | None) -> int:
    """Bytes of rows and marks that cleanups deleted after `since`, for one replica.

    None: ever, as far as the ledger goes.
    """
    return sum(
        _bytes_of(report) for report in cleanups if since is None or _ended_after(report, since)
    )


def _ended_after(report: Mapping[str, Any], since: datetime) -> bool:
    """Whether the run ended after `since`; true for a killed run, which has no end.

    A killed run is counted until the ledger no longer has it.
    """
    finished = report.get("finished")
    return finished is None or datetime.fromisoformat(finished) > since


def _bytes_of(report: Mapping[str, Any]) -> int:
    planned, applied = int(report.get("planned") or 0), int(report.get("applied") or 0)
    rows = int(report.get("bytes") or 0) * applied // planned if planned else 0
    return rows + int((report.get("marks") or {}).get("dropped") or 0) * MARK_BYTES


def reclaimed_at(runs: Iterable[Mapping[str, Any]]) -> dict[str, datetime]:
    """When each node was last reclaimed, by the reports of this duty."""
    latest: dict[str, datetime] = {}
    for report in runs:
        for node in report.get("nodes") or ():
            if node.get("reclaimedAt"):
                at = datetime.fromisoformat(node["reclaimedAt"])
                latest[node["node"]] = max(at, latest.get(node["node"], at))
    return latest


def why_due(
    mib: int, waiting: int, last: datetime | None, now: datetime, *, force: bool
) -> str | None:
    """Why a node with `mib` on disk and about `waiting` deleted bytes is due.

    None when it is not.
    """
    if force:
        return "asked for"
    if waiting:
        return f"about {to_mib(waiting)} MiB were deleted since it was last reclaimed"
    if last is None and mib:
        return "never reclaimed"
    if last is not None and mib and now - last >= TOMBSTONES:
        return (
            f"last reclaimed {last:%Y-%m-%d}: tombstones older than {TOMBSTONES.days} days may go"
        )
    return None


def to_mib(count: int) -> int:
    """MiB, rounded up, as Cassandra rounds them."""
    return -(-count // _MIB)
