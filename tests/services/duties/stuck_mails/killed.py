"""One step in a process of its own, that a crash point ends by SIGKILL: `python killed.py STEP QUEUE RUN PARAMS`."""

import json
import sys

from mailslice.duty.request import RunRequest
from mailslice.duty.road import run_step
from mailslice.model.mail import QueueName
from mailslice.model.settings import load_settings

step, queue, run, params = sys.argv[1:]
run_step(step, RunRequest("stuck_mails", QueueName(queue), run, who="tester", params=json.loads(params)), load_settings())
print("the step ended")
