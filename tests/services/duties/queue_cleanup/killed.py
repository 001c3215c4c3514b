"""One step in a process of its own, that a crash point ends by SIGKILL.

`python killed.py STEP QUEUE RUN PARAMS`, without Spark.
"""

import json
import sys

from mailslice.checks import gate
from mailslice.engine.frames import InProcess
from mailslice.maintenance import runner
from mailslice.maintenance.context import StepContext
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import run_step
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings

StepContext.spark = lambda _: InProcess()
runner.agree = lambda stores: stores.settings
gate._publish = lambda *_: "not rendered"
step, queue, run, params = sys.argv[1:]
run_step(
    step,
    RunRequest("queue_cleanup", QueueName(queue), run, params=json.loads(params)),
    load_settings(),
)
print("the step ended")
