"""Runs one step in this process, which SIGKILL ends at a crash point.

`python -m tests.services.duties.killed_step DUTY STEP QUEUE RUN PARAMS HOURS`: without Spark, with
a clock that is HOURS ahead, and with a census that does not wait for figures of RabbitMQ.
"""

import json
import sys
from datetime import timedelta

from mailslice.duties.queue_audit import evidence
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import run_step
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.rabbitmq.work_census import WorkQueueCensus
from tests.services.duties.world import ahead, as_set, in_process

if __name__ == "__main__":
    evidence.HOLD = evidence.LONGEST_HOLD = timedelta(0)
    WorkQueueCensus.elsewhere = lambda _: 0
    duty, step, queue, run, params, hours = sys.argv[1:]
    if duty == "blob_gc":
        S3BlobStore.now_skew = lambda *_: timedelta(0)
        CassandraSession.longest_statement = timedelta(0)
    request = RunRequest(duty, QueueName(queue), run, who="tester", params=json.loads(params))
    agree = {"agree": as_set} if duty == "queue_cleanup" else {}
    tools = in_process(duty, **agree)
    clock = ahead(timedelta(hours=float(hours)))
    run_step(step, request, load_settings(), clock=clock, tools=tools)
    print("the step ended")
