"""Mails with neither row nor mark that a person forces back.

They have a row again, so that workers, cleanups and later runs treat them as live.
"""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.codec.headers import headers_of, partition_in
from mailslice.model.clock import system_clock
from mailslice.model.mail import Partition
from mailslice.model.slices import slice_start
from mailslice.worker import open_worker
from mailslice.worker.io.deleted_check import REASON
from tests.killed import Killed

SECONDS = 30


def cleaned_letter(letters):
    """As a worker dead-letters a mail whose slice was cleaned.

    Its headers name a slice that is over.
    """
    item = letters.mail("cleaned", row=False)
    long_ago = Partition(
        slice_start(datetime.now(UTC) - timedelta(days=1), letters.settings.queue.slice_window), 0
    )
    letters.letter(item, **headers_of(long_ago), **{"x-mailslice-reason": REASON})
    return item


def live(letters):
    return list(MailQueue(letters.stores, letters.queue, system_clock).browse())


@pytest.mark.usefixtures("any_clock")
@pytest.mark.parametrize("shared", [True, False])
async def test_a_mail_that_is_forced_back_is_delivered_put_off_and_delivered_again(letters, shared):
    queue = letters.settings.queue.model_copy(update={"shared": shared})
    # A deployment is shared or not: its own keyspace says which, and its workers agree.
    own = letters.settings.own.model_copy(
        update={"keyspace": f"{letters.settings.own.keyspace}_{shared}".lower()}
    )
    letters.settings = letters.settings.model_copy(update={"queue": queue, "own": own})
    item = await asyncio.to_thread(cleaned_letter, letters)
    report = await asyncio.to_thread(letters.run, redrive=True, cause="cleaned", force_cleaned=True)
    assert (report["redriven"], report["kept"]) == (1, 0)
    assert [row.item for row in await asyncio.to_thread(live, letters)] == [item]
    # Days later, when the slice of its row is over, too.
    later = open_worker(
        letters.settings, letters.queue, clock=lambda: datetime.now(UTC) + timedelta(days=3)
    )
    async with later as worker, aclosing(worker.deliveries(4)) as deliveries:
        await (await asyncio.wait_for(anext(deliveries), SECONDS)).retry(after=timedelta(seconds=1))
        again = await asyncio.wait_for(anext(deliveries), SECONDS)
        assert again.item == item
        await again.complete()
    assert await asyncio.to_thread(live, letters) == []
    assert await asyncio.to_thread(letters.dead) == []


def test_a_forced_redrive_that_was_cut_off_is_an_ordinary_one_for_the_next_run(
    letters, monkeypatch
):
    cleaned_letter(letters)

    def crash(at):
        if at == "apply:after-row":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("mailslice.model.crash.point", crash)
        with pytest.raises(Killed):
            letters.run(redrive=True, force_cleaned=True)
    assert letters.work() == []
    assert letters.run(redrive=True)["redriven"] == 1
    (row,) = live(letters)
    ((properties, _),) = letters.taken(letters.names.work_queue)
    assert partition_in(properties.headers) == row.partition
