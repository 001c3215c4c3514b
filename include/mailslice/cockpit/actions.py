"""Previews of actions, their start, and their results, as plain values for the templates."""

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
"""Starts the DAG of a name, with a conf, as a user. Returns the run id."""
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
    "quarantined": "set aside in quarantine",
    "finished": "finished for an earlier move",
    "already": "brought back before",
    "mayBeDelivered": "perhaps delivered",
}
_ALWAYS = set("deleted retried moved delayed undeleted released discarded republished".split())
_MAX_PREVIEWS = 2
"""Most previews that are made at the same time. Each may read for ten seconds."""


class Actions:
    """Safe to share between threads. `start` is None where there is no Airflow."""

    def __init__(self, facts: Facts, start: Start | None) -> None:
        self._facts = facts
        self._start = start
        self._turns = threading.BoundedSemaphore(_MAX_PREVIEWS)

    def preview(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The mails that the action would change. Their selection is stored under its digest.

        Raises BadInput, UnknownQueue, StoreUnavailable, and TryAgain while others are made.
        """
        request = ActionRequest.of(body)
        if not self._turns.acquire(blocking=False):
            raise TryAgain(f"{_MAX_PREVIEWS} previews are being made: try again in some seconds")
        try:
            with self._facts.stores() as stores:
                for name in (request.queue, request.to):
                    if name is not None:
                        queues.require(stores, name)
                mails = preview(stores, request, lambda: self._facts.now)
        finally:
            self._turns.release()
        settings = self._facts.settings
        digest = keep(artifacts(settings), mails.selection)
        return {
            "seen": mails,
            "request": request,
            "verb": VERBS[request.action],
            "digest": digest,
            "conf": {**_conf(request), "digest": digest},
            "reason_required": settings.admin.reason_required,
        }

    def act(self, body: Mapping[str, Any], who: str) -> str:
        """Start, as this user, the run that acts on the mails of a preview. Returns its id.

        Raises BadInput, and Refused for a preview that is old or belongs to another request.
        """
        request, settings = ActionRequest.of(body), self._facts.settings
        reason = str(body.get("reason") or "").strip()
        if settings.admin.reason_required and not reason:
            raise BadInput("a reason is missing: MAILSLICE_ADMIN_REASON_REQUIRED asks for one")
        conf = {**_conf(request), "reason": reason or None}
        if request.action is MailAction.REPUBLISH and body.get("accept_duplicates") is True:
            conf["accept_duplicates"] = True
        if request.action not in WITHOUT_PREVIEW:
            conf["digest"] = str(body.get("digest") or "")
            previewed(artifacts(settings), request, conf["digest"], self._facts.now)
        if self._start is None:
            raise BadInput("actions are runs of Airflow, and this page is served without it")
        return self._start(MAIL_ACTIONS, conf, who)

    def result(self, queue: str, run: str) -> dict[str, Any]:
        """The result of a run: `result` (None while unknown), its `counts` in words, `queue`."""
        result = result_of(self._facts.settings, queue_name(queue), run)
        shown = dict(result or {})
        if "retried" in shown:  # a retry found them deleted before
            shown["gone"] = (shown.get("gone") or 0) + (shown.pop("deleted", None) or 0)
        counts = [
            (shown[name], text)
            for name, text in _COUNTS.items()
            if shown.get(name) or (name in _ALWAYS and name in shown)
        ]
        return {"queue": queue, "result": result, "counts": counts}


def _conf(request: ActionRequest) -> dict[str, Any]:
    fields = request.as_json()
    texts = fields.pop("filter")
    return {**{name: value for name, value in fields.items() if value is not None}, **texts}
