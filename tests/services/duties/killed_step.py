"""Runs one step in a process of its own, which SIGKILL ends at a crash point.

Without Spark, with a clock that is some hours ahead, and with a census that does not wait for
figures of RabbitMQ. The process is forked from one that has imported all this: that saves a second.
"""

import os
import signal
from collections.abc import Mapping
from datetime import timedelta

from mailslice.duties.queue_audit import evidence
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import run_step
from mailslice.model import crash
from mailslice.model.settings import load_settings
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.rabbitmq.work_census import WorkQueueCensus
from tests.services.duties.world import ahead, as_set, in_process


def killed_step(
    step: str, request: RunRequest, environ: Mapping[str, str], point: str, hours: float, log: str
) -> None:
    """Runs the step. `log`: the file of its output."""
    output = os.open(log, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environ)

    def die(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    crash.arm(die)
    evidence.HOLD = evidence.LONGEST_HOLD = timedelta(0)
    WorkQueueCensus.elsewhere = lambda _: 0
    if request.duty == "blob_gc":
        S3BlobStore.now_skew = lambda *_: timedelta(0)
        CassandraSession.longest_statement = timedelta(0)
    agree = {"agree": as_set} if request.duty == "queue_cleanup" else {}
    tools = in_process(request.duty, **agree)
    clock = ahead(timedelta(hours=hours))
    run_step(step, request, load_settings(), clock=clock, tools=tools)
    print("the step ended", flush=True)
