"""The DAG that acts on mails: its params, and two tasks. `mailslice.actions` does the work.

It is not paused when Airflow first sees it: only a person, or a script, starts it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task

from mailslice.actions.request import MAIL_ACTIONS, MAX_GIVEN, WITHOUT_PREVIEW, MailAction
from mailslice.airflow.dag_doc import with_params
from mailslice.airflow.dag_duty import DagDuty, final_errors
from mailslice.airflow.dag_settings import DagSettings
from mailslice.airflow.deployments import Deployment
from mailslice.airflow.duty_dag import Declaration, dag_arguments, per_deployment
from mailslice.airflow.notifier import DutyNotifier
from mailslice.airflow.run_request import who
from mailslice.airflow.versions import AirflowFailException, AirflowSkipException
from mailslice.model.errors import BadInput

MAX_RUNS = 8
"""Runs at the same time: a delete need not wait for a long move."""
_TEXT = {"type": ["null", "string"], "maxLength": 1000}
_DELAYED = "; flush and retry act on delayed mails only"
PARAMS: Mapping[str, tuple[Any, dict[str, Any], str]] = {
    "queue": (..., {"type": "string", "minLength": 1, "maxLength": 255}, "queue of the mails"),
    "action": (
        ...,
        {"type": "string", "enum": [action.value for action in MailAction]},
        f"the action{_DELAYED}",
    ),
    "sender": (None, _TEXT, "envelope sender, `<>` the null sender; `*` and `?` are wildcards"),
    "recipient": (None, _TEXT, "one of the envelope recipients"),
    "domain": (None, _TEXT, "domain of one of the recipients"),
    "name": (None, _TEXT, "name of the mail"),
    "older_than": (None, _TEXT, "least age, such as 2h or 30d"),
    "ids": (
        None,
        {"type": ["null", "array"], "items": {"type": "string"}, "maxItems": MAX_GIVEN},
        "enqueue ids, one a line; an empty list is refused",
    ),
    "to": (None, _TEXT, "queue that gets the mails of a move"),
    "run": (None, _TEXT, "for undelete: the run of the delete, as `queue deleted` lists it"),
    "lasts": (
        None,
        _TEXT,
        (
            "for hold: it ends by itself after this long, such as 2h; for delay: how long mails "
            "wait from the start of the run, 1m to 30d"
        ),
    ),
    "digest": (
        None,
        {"type": ["null", "string"], "pattern": "^([0-9a-f]{64}|any|)$"},
        (
            "digest of a preview: the run acts on its mails only; any = no preview: it acts on the "
            "mails that match and were enqueued before it began; none = it only makes a "
            "preview. Hold, release, republish and undelete have no preview"
        ),
    ),
    "accept_duplicates": (
        False,
        {"type": "boolean"},
        (
            "for move, delay and undelete: also mails that an earlier run kept back as they may "
            "have been delivered; for republish: also mails that James may have delivered"
        ),
    ),
    "reason": (None, _TEXT, "why, for the record"),
}
"""Name -> default (`...`: it must be given), JSON schema, meaning."""


ActionTask = Any  # Airflow's XComArg, whose `>>` has no type
Wire = Callable[[ActionTask, ActionTask], None]
"""Orders the two tasks: `select` fixes which mails the run is about, `act` acts on them."""


def action_dag(*, doc: str | None, **more: Any) -> Callable[[Wire], Wire]:
    """Declares the DAG in each deployment; the decorated function wires its tasks.

    `more` are the fields of Declaration. Raises BadSetting, which Airflow shows as import error.
    """
    return per_deployment(_build, Declaration(duty=MAIL_ACTIONS, doc=doc, **more))


def action_doc(text: str) -> str:
    """Markdown: `text`, with the params before its example."""
    params = (
        (name, "required" if default is ... else "false" if default is False else "unset", meaning)
        for name, (default, _, meaning) in PARAMS.items()
    )
    return with_params(text, "In brackets: the default.", params)


def _build(
    declaration: Declaration, wire: Wire, settings: DagSettings, deployment: Deployment
) -> DAG:
    own = settings.of(MAIL_ACTIONS).model_copy(update={"approve_within": None})  # nobody is asked
    prefix = settings.prefix + deployment.prefix
    duty = DagDuty(
        duty=MAIL_ACTIONS,
        prefix=prefix,
        load=deployment.enter,
        settings=own,
        shared_artifacts=settings.shared_artifacts,
    )
    with DAG(
        dag_id=f"{prefix}{MAIL_ACTIONS}",
        doc_md=action_doc(declaration.doc or ""),
        schedule=None,
        params={name: _param(name) for name in PARAMS},
        tags=[*(tag.value for tag in declaration.tags), *own.tags],
        is_paused_upon_creation=bool(own.paused),
        **dag_arguments(declaration, own, DutyNotifier(deployment.connection))
        | {"max_active_runs": MAX_RUNS},
    ) as dag:
        wire(_task(duty, select), _task(duty, act))
    return dag


def _task(
    duty: DagDuty, work: Callable[[DagDuty, Mapping[str, Any]], dict[str, Any]]
) -> ActionTask:
    @task(task_id=work.__name__)
    def run() -> dict[str, Any]:
        with final_errors():
            return work(duty, get_current_context())

    return run()


def _param(name: str) -> Param:
    default, schema, meaning = PARAMS[name]
    about = {"title": name.replace("_", " ").capitalize(), "description": meaning, **schema}
    return Param(**about) if default is ... else Param(default, **about)


def select(duty: DagDuty, context: Mapping[str, Any]) -> dict[str, Any]:
    """The task that fixes which mails the run is about. Raises Refused for a preview of others."""
    return _run_of(context).select(duty.ready())


def act(duty: DagDuty, context: Mapping[str, Any]) -> dict[str, Any]:
    """The task that acts. Its XCom is the result, also where not all could be done."""
    run = _run_of(context)
    if not run.digest and run.request.action not in WITHOUT_PREVIEW:
        raise AirflowSkipException("a preview: nothing is changed; run again with its digest")
    result = run.act(duty.ready())
    if result["failed"]:
        context["ti"].xcom_push(key="return_value", value=result)
        raise AirflowFailException(f"{run.request.action}: {result['failed']}: {result}")
    return result


def _run_of(context: Mapping[str, Any]) -> Any:
    from mailslice.actions.request import ActionRequest
    from mailslice.actions.run import ActionRun

    params = dict(context["params"])
    if unknown := ", ".join(sorted(params.keys() - PARAMS.keys())):
        raise BadInput(f"params: {unknown} is not a param; allowed: {', '.join(sorted(PARAMS))}")
    return ActionRun.of_dag(
        ActionRequest.of(params),
        context["dag_run"].run_id,
        params.get("digest") or "",
        who=who(context),
        reason=params.get("reason") or None,
        accept_duplicates=bool(params.get("accept_duplicates")),
    )
