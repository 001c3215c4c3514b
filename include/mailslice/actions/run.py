"""One run of an action, in two repeatable steps: `select` fixes the mails, `act` acts on them.

The run's folder, `runs/mail_actions/QUEUE/RUN/`, has the selection and the result.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any, Self

from mailslice.actions.perform import Context, perform
from mailslice.actions.preview import Selection, keep, preview, previewed
from mailslice.actions.request import MAIL_ACTIONS, WITHOUT_PREVIEW, ActionRequest
from mailslice.admin import queues
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.retention import prune_sometimes
from mailslice.maintenance.run_request import run_of_dag
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import BadInput, MailsliceError, Refused
from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings
from mailslice.stores import open_stores

log = logging.getLogger(__name__)
ANY = "any"
"""In place of a digest: no preview, but the mails that match when the run begins."""
_SELECTION, _RESULT = "selection.json", "result.json"
_PREVIEW_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class ActionRun:
    """What a run was asked. `digest`: its preview's, ANY, or "" (make a preview, if it has one)."""

    request: ActionRequest
    context: Context
    digest: str = ""
    clock: Clock = system_clock

    @classmethod
    def of_dag(cls, request: ActionRequest, dag_run: str, digest: str, **context: Any) -> Self:
        """For the Airflow run `dag_run`. `context`: the fields of Context except `run`."""
        run = run_of_dag(MAIL_ACTIONS, request.queue, dag_run)
        return cls(request, Context(run=run, **context), digest)

    def select(self, settings: Settings) -> dict[str, Any]:
        """Store the selection, once for all tries. Returns JSON with `act`: whether to call `act`.

        Without a digest: makes a preview, if the action has one. Raises Refused, BadInput.
        """
        if settings.admin.reason_required and not (self.context.reason or "").strip():
            raise BadInput("reason is missing: MAILSLICE_ADMIN_REASON_REQUIRED asks for one")
        location, folder = artifacts(settings), self._folder(settings)
        if not self.digest and self.request.action not in WITHOUT_PREVIEW:
            with open_stores(settings) as stores:
                queues.require(stores, self.request.queue)
                made = preview(stores, self.request, self.clock, seconds=_PREVIEW_SECONDS)
            digest = keep(location, made.selection)
            facts = {"count": made.count, "bytes": made.size, "cut": made.cut, "digest": digest}
            log.info("a preview, nothing is changed: %s", facts)
            return {**facts, "act": False}
        if self._selection(folder) is None:
            now = self.clock()
            selection = (
                Selection(self.request, now, before=now)
                if self.digest == ANY or self.request.action in WITHOUT_PREVIEW
                else replace(previewed(location, self.request, self.digest, now), at=now)
            )
            folder.write_json(_SELECTION, selection.as_json())
        return {"digest": self.digest, "act": True}

    def act(self, settings: Settings) -> dict[str, Any]:
        """Act on the stored selection. Returns the result. Raises BadInput without a selection."""
        folder = self._folder(settings)
        selection = self._selection(folder)
        if selection is None:
            raise BadInput(f"{folder.uri} has no {_SELECTION}: begin with the task select")
        try:
            with open_stores(settings) as stores:
                result = perform(stores, selection, self.context, self.clock)
        except MailsliceError as error:
            folder.write_json(_RESULT, {**self.request.as_json(), "failed": str(error)})
            raise
        folder.write_json(_RESULT, result)
        log.info("%s", result)
        which = MAIL_ACTIONS, self.request.queue, self.clock(), settings.duty.retention
        try:
            prune_sometimes(artifacts(settings), *which)
        except MailsliceError as error:
            log.warning("old runs were not pruned: %s", error)
        return result

    def _selection(self, folder: RunFolder) -> Selection | None:
        """The stored selection. Raises Refused if it is of another request."""
        stored = folder.read_json(_SELECTION)
        selection = None if stored is None else Selection.of(stored)
        if selection is not None and selection.request != self.request:
            raise Refused(f"run {self.context.run} was of another request: start a new run")
        return selection

    def _folder(self, settings: Settings) -> RunFolder:
        return RunFolder(artifacts(settings), MAIL_ACTIONS, self.request.queue, self.context.run)


def result_of(settings: Settings, queue: QueueName, dag_run: str) -> dict[str, Any] | None:
    """The result of the Airflow run `dag_run` on that queue; None while there is none."""
    run = run_of_dag(MAIL_ACTIONS, queue, dag_run)
    return RunFolder(artifacts(settings), MAIL_ACTIONS, queue, run).read_json(_RESULT)
