"""One step in a process of its own, that a crash point ends by SIGKILL: `python -m ... DUTY STEP QUEUE RUN PARAMS`. Without Spark."""

import json
import sys

from mailslice.duty.context import StepContext
from mailslice.duty.request import RunRequest
from mailslice.duty.road import run_step
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings
from mailslice.quality import gate
from mailslice.spark.frames import InProcess

if __name__ == "__main__":
    StepContext.spark = lambda _: InProcess()
    gate._publish = lambda *_: "not rendered"
    duty, step, queue, run, params = sys.argv[1:]
    run_step(step, RunRequest(duty, QueueName(queue), run, params=json.loads(params)), load_settings())
    print("the step ended")
