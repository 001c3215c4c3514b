"""Kills (-9) where a mail waits: between the copy of what is parked or leased and its
acknowledgement.
"""

import asyncio
import signal
import subprocess
import sys
from contextlib import aclosing

import pytest

from mailslice.admin.mail_queue import MailQueue
from mailslice.admin.queues import create
from mailslice.model.clock import system_clock
from mailslice.model.crash import VARIABLE
from mailslice.model.mail import Mail
from mailslice.model.settings import clone_root
from mailslice.stores import open_stores
from mailslice.worker import open_worker
from tests.services.worker.test_faults import next_of

POINTS = {"park": "park:copied", "lease": "lease:copied"}


@pytest.mark.parametrize("how", POINTS)
async def test_a_kill_after_the_copy_of_a_mail_that_waits_loses_nothing(fresh, how):
    with open_stores(fresh.settings) as stores:
        queue = create(stores, "spool")
        async with open_worker(fresh.settings, queue) as worker:
            mail = Mail("m", "a@b.example", ("c@d.example",))
            item = await worker.enqueue(mail, b"Subject: x\r\n\r\nx\r\n")
        killed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "tests.services.faults.waiting", how, queue],
            env={**fresh.environ, VARIABLE: POINTS[how]},
            cwd=clone_root(),
            timeout=90,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
        async with (
            open_worker(fresh.settings, queue) as worker,
            aclosing(worker.deliveries(4)) as deliveries,
        ):
            delivery = await next_of(deliveries, 60)
            assert delivery.item == item
            await delivery.complete()
        assert list(MailQueue(stores, queue, system_clock).browse()) == []
