"""One step in a process of its own, that a crash point ends by SIGKILL: `python killed.py STEP RUN PARAMS HOURS`. Without Spark."""

import json
import sys
from datetime import timedelta

from mailslice.checks import gate
from mailslice.engine.frames import InProcess
from mailslice.maintenance.context import StepContext
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.maintenance.runner import run_step
from mailslice.model.clock import system_clock
from mailslice.model.settings import load_settings
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.session import CassandraSession

StepContext.spark = lambda _: InProcess()
S3BlobStore.now_skew = lambda *_: timedelta(0)
CassandraSession.longest_statement = timedelta(0)
gate._publish = lambda *_: "not rendered"
step, run, params, hours = sys.argv[1:]
request = RunRequest("blob_gc", NO_QUEUE, run, params=json.loads(params))
run_step(
    step, request, load_settings(), clock=lambda: system_clock() + timedelta(hours=float(hours))
)
print("the step ended")
