"""Finds the run that a single step continues."""

import logging

from mailslice.maintenance.artifacts import FILES, RunFolder, artifacts, queue_folder
from mailslice.maintenance.run_request import STEPS, start_in_run_id
from mailslice.model.errors import BadInput, PlanRefused
from mailslice.model.settings import Settings

log = logging.getLogger(__name__)

_MAX_RUNS = 200


def newest_pending(settings: Settings, duty: str, queue: str, step: str) -> str:
    """The newest run that waits for `step`: its earlier steps ended. Raises BadInput if none does.

    Apply takes only the newest plan, once it passed its check: never an older one, such as that of
    a dry run. A newer run with unreadable files ends apply with PlanRefused; other steps skip it.
    """
    location = artifacts(settings)
    before = {"report": ("plan",)}.get(step, STEPS[: STEPS.index(step)])

    def age(run: str) -> tuple[str, str]:
        if time := start_in_run_id(run):
            return time, run
        planned = location.modified(RunFolder(location, duty, queue, run).file(FILES["plan"]))
        return f"{planned:%Y%m%d%H%M%S}" if planned else "", run

    runs = sorted(location.folders(queue_folder(duty, queue)), key=age, reverse=True)
    for run in runs[:_MAX_RUNS]:
        folder = RunFolder(location, duty, queue, run)
        try:
            # Read first: most runs have it, and nothing else is read of them.
            if folder.read_json(FILES[step]) is not None:
                if step == "apply":
                    break
                continue
            ended = {name for name in before if folder.read_json(FILES[name]) is not None}
        except PlanRefused as error:
            if step == "apply":
                raise PlanRefused(
                    f"run {run}, the newest of {duty} on {queue}: {error}, or name a run by --run"
                ) from error
            log.warning("run %s is passed over: %s", run, error)
            continue
        if ended.issuperset(before):
            return run
        if step == "apply" and "plan" in ended:
            raise BadInput(
                f"run {run}, the newest plan of {duty} on {queue}, has not passed its "
                "check: duty check, name a run by --run, or plan anew: duty plan"
            )
    raise BadInput(
        f"no run of {duty} on {queue} waits for {step} in "
        f"{location.uri(queue_folder(duty, queue))}; name one by --run, or plan one: duty "
        "plan"
    )
