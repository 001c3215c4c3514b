"""What can be proved of mails by their ids."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from mailslice.admin.evidence import still_live
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings
from mailslice.testing.memory import MemoryTables
from tests.contracts.making import row

HOUR = timedelta(hours=1)
SPOOL = QueueName("spool")


def test_a_mail_is_live_in_whatever_table_its_row_is_now() -> None:
    """An audit found it in V3, which somebody drops after the migration."""
    settings = load_settings({}, state_file=Path("/nonexistent"))
    tables: Any = MemoryTables(settings)
    moved, gone, done = (row(SPOOL, name=name) for name in ("moved", "gone", "done"))
    tables.v4.insert_many([moved, done])
    tables.deleted.mark_many(SPOOL, [done.enqueue_id])
    wanted = {one.enqueue_id: one.partition for one in (moved, gone, done)}
    assert tables.existing == (tables.v4,)
    assert still_live(tables, SPOOL, HOUR, wanted) == {moved.enqueue_id: moved}
    tables.browse_starts.write(SPOOL, moved.partition.slice_start + HOUR, 1)
    assert still_live(tables, SPOOL, HOUR, wanted) == {}
