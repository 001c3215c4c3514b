"""The two reads of an audit over tables in memory: what a delay between them proves."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from mailslice.codec.row import epoch_us
from mailslice.duties.queue_audit import scans
from mailslice.duties.queue_audit.rules import BrokerCounts, Evidence
from mailslice.engine.frames import InProcess
from mailslice.maintenance.row_file import stream_rows
from mailslice.model.settings import Settings
from mailslice.model.verdicts import MailVerdict
from mailslice.stores.cassandra.own import DelayState
from mailslice.testing.memory import MemoryStores
from tests.contracts.making import HOUR, row
from tests.unit.duties.judging import NOW, QUEUE, run_of

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("delayed_at", "verdict"), [(NOW - HOUR, "lost"), (NOW + MINUTE, "unknown")]
)
def test_a_delay_that_begins_and_ends_between_the_reads_proves_no_mail_lost(
    tmp_path, monkeypatch, delayed_at, verdict
):
    settings, mail, delays = Settings(), row(QUEUE, NOW - HOUR), {}
    stores = MemoryStores(settings)
    stores.tables.v4.insert_many([mail])
    nothing = SimpleNamespace(by_ids=lambda *_: {})
    delayed = SimpleNamespace(waiting=lambda *_: {}, states=lambda *_: delays)
    stores.own = SimpleNamespace(
        delayed_mails=delayed, mail_stages=nothing, republished_mails=nothing
    )
    monkeypatch.setattr(scans, "stores_of", lambda _: stores)
    monkeypatch.setattr(scans, "missing_content", lambda *_: ({}, frozenset()))
    folder = run_of(tmp_path, "queue_audit").folder
    where = (settings, QUEUE, folder.artifacts, folder.name)
    spec = scans.AuditSpec(*where, HOUR, 1, latest=NOW, began=NOW)
    old = scans.find_old_mails(InProcess(), spec, [mail.partition.slice_start])
    delays[mail.enqueue_id] = DelayState(written_us=epoch_us(delayed_at))  # closed by now
    counts = BrokerCounts(ready=0, unacknowledged=0, delayed=0)
    evidence = Evidence(NOW, shared=False, counts=counts, census=frozenset())
    [task] = scans.classify_all(InProcess(), spec, [one for one in old if one.count], evidence)
    [judged] = stream_rows(folder.artifacts, folder.name, task.file, MailVerdict)
    assert judged.verdict == verdict
