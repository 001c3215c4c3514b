"""One step in a process of its own, that a crash point ends by SIGKILL: `python killed.py STEP QUEUE RUN PARAMS`. Without Spark."""

import json
import sys

from mailslice.duty import road
from mailslice.duty.context import StepContext
from mailslice.duty.request import RunRequest
from mailslice.duty.road import run_step
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings
from mailslice.quality import gate
from mailslice.spark.frames import InProcess

StepContext.spark = lambda _: InProcess()
road.agree = lambda stores: stores.settings
gate._publish = lambda *_: "not rendered"
step, queue, run, params = sys.argv[1:]
run_step(
    step,
    RunRequest("queue_cleanup", QueueName(queue), run, params=json.loads(params)),
    load_settings(),
)
print("the step ended")
