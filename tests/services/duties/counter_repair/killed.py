"""One step in a process of its own, that a crash point ends by SIGKILL: `python killed.py STEP RUN PARAMS`. Without Spark."""

import json
import sys

import pytest

from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.maintenance.runner import run_step
from mailslice.model.settings import load_settings
from tests.services.duties.counter_repair.in_process import without_spark

without_spark(pytest.MonkeyPatch())
step, run, params = sys.argv[1:]
run_step(
    step, RunRequest("counter_repair", NO_QUEUE, run, params=json.loads(params)), load_settings()
)
print("the step ended")
