"""One step in a process of its own, that a crash point ends by SIGKILL: `python killed.py STEP RUN PARAMS`."""

import json
import sys

from mailslice.duty.request import NO_QUEUE, RunRequest
from mailslice.duty.road import run_step
from mailslice.model.settings import load_settings
from mailslice.quality import gate

gate._publish = lambda *_: "not rendered"
step, run, params = sys.argv[1:]
run_step(step, RunRequest("counter_repair", NO_QUEUE, run, params=json.loads(params)), load_settings())
print("the step ended")
