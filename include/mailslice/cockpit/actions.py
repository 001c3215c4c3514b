"""Previews of actions, their start, and what came of them, as plain values for the templates."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from mailslice.actions.preview import keep, preview, previewed
from mailslice.actions.request import MAIL_ACTIONS, WITHOUT_PREVIEW, ActionRequest, MailAction
from mailslice.actions.run import result_of
from mailslice.admin import queues
from mailslice.cockpit.facts import Facts
from mailslice.maintenance.artifacts import artifacts
from mailslice.model.errors import BadInput, TryAgain
from mailslice.model.names import queue_name

Start = Callable[[str, Mapping[str, Any], str], str]
"""Starts the DAG of a name, with a conf, as a user; its run id."""
VERBS = {
    MailAction.DELETE: "Delete",
    MailAction.CLEAR: "Delete all",
    MailAction.RETRY: "Retry now",
    MailAction.FLUSH: "Retry all now",
    MailAction.DELAY: "Delay",
    MailAction.MOVE: "Move",
}
_COUNTS = {
    "deleted": "deleted",
    "retried": "retried",
    "moved": "moved",
    "delayed": "delayed",
    "republished": "put back",
    "later": "due later anyway",
    "undeleted": "brought back",
    "held": "held",
    "released": "released",
    "discarded": "discarded",
    "gone": "gone meanwhile",
    "soon": "due within a minute",
    "overdue": "overdue",
    "inHandler": "in a handler",
    "contentLost": "without content",
    "pending": "pending",
    "doubtful": "in doubt",
    "finished": "finished for an earlier move",
    "already": "brought back before",
    "mayBeDelivered": "perhaps delivered",
}
_ALWAYS = set("deleted retried moved delayed undeleted released discarded republished".split())
_LOOKING = 2
"""Previews that are made at one time: each may read for ten seconds."""


class Actions:
    """Safe to share between threads. `start` None: this page serves without Airflow."""

    def __init__(self, facts: Facts, start: Start | None) -> None:
        self._facts = facts
        self._start = start
        self._turns = threading.BoundedSemaphore(_LOOKING)

    def preview(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the action would be about, kept under its digest.

        Raises BadInput, UnknownQueue, StoreUnavailable, TryAgain while others look.
        """
        request = ActionRequest.of(asked)
        if not self._turns.acquire(blocking=False):
            raise TryAgain(f"{_LOOKING} previews are being made: try again in some seconds")
        try:
            with self._facts.stores() as stores:
                for name in (request.queue, request.to):
                    if name is not None:
                        queues.require(stores, name)
                seen = preview(stores, request, lambda: self._facts.now)
        finally:
            self._turns.release()
        settings = self._facts.settings
        digest = keep(artifacts(settings), seen.selection)
        return {
            "seen": seen,
            "request": request,
            "verb": VERBS[request.action],
            "digest": digest,
            "conf": {**_conf(request), "digest": digest},
            "reason_required": settings.admin.reason_required,
        }

    def act(self, asked: Mapping[str, Any], who: str) -> str:
        """Start the run that acts on the mails of a preview, for that user; its id.

        Raises Refused for a preview that is old, or of another request, and BadInput.
        """
        request, settings = ActionRequest.of(asked), self._facts.settings
        reason = str(asked.get("reason") or "").strip()
        if settings.admin.reason_required and not reason:
            raise BadInput("a reason is missing: MAILSLICE_ADMIN_REASON_REQUIRED asks for one")
        conf = {**_conf(request), "reason": reason or None}
        if request.action is MailAction.REPUBLISH and asked.get("accept_duplicates") is True:
            conf["accept_duplicates"] = True
        if request.action not in WITHOUT_PREVIEW:
            conf["digest"] = str(asked.get("digest") or "")
            previewed(artifacts(settings), request, conf["digest"], self._facts.now)
        if self._start is None:
            raise BadInput("actions are runs of Airflow, and this page is served without it")
        return self._start(MAIL_ACTIONS, conf, who)

    def result(self, queue: str, run: str) -> dict[str, Any]:
        """What came of a run: `result`, None while nobody knows, its `counts` in words, `queue`."""
        result = result_of(self._facts.settings, queue_name(queue), run)
        shown = dict(result or {})
        if "retried" in shown:  # a retry deletes none: it found them deleted
            shown["gone"] = (shown.get("gone") or 0) + (shown.pop("deleted", None) or 0)
        counts = [
            (shown[name], text)
            for name, text in _COUNTS.items()
            if shown.get(name) or (name in _ALWAYS and name in shown)
        ]
        return {"queue": queue, "result": result, "counts": counts}


def _conf(request: ActionRequest) -> dict[str, Any]:
    about = request.as_json()
    texts = about.pop("filter")
    return {**{name: value for name, value in about.items() if value is not None}, **texts}
