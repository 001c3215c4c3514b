"""One step in a process of its own, that a crash point ends by SIGKILL.

`python -m ... DUTY STEP QUEUE RUN PARAMS`: without Spark, and with a census that waits for no figures.
"""

import json
import sys
from datetime import timedelta

from mailslice.checks import gate
from mailslice.duties.queue_audit import evidence
from mailslice.engine.frames import InProcess
from mailslice.maintenance.context import StepContext
from mailslice.maintenance.run_request import RunRequest
from mailslice.maintenance.runner import run_step
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings
from mailslice.stores.rabbitmq.work_census import WorkHold

if __name__ == "__main__":
    StepContext.spark = lambda _: InProcess()
    gate._publish = lambda *_: "not rendered"
    evidence.HOLD = timedelta(0)
    WorkHold.elsewhere = lambda _: 0
    duty, step, queue, run, params = sys.argv[1:]
    run_step(
        step,
        RunRequest(duty, QueueName(queue), run, who="tester", params=json.loads(params)),
        load_settings(),
    )
    print("the step ended")
