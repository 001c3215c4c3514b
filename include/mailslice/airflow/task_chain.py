"""The five steps of a duty as Airflow tasks, one chain a queue; `duty_dag` makes the DAG.

plan (Spark) -> check (Great Expectations) -> [approve] -> apply (Spark) -> verify (Great
Expectations) -> report. A queue that fails stops no other. The report always runs, and fails the
run when a step failed. DAGs that only read have no `approve`.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

from airflow.sdk import TriggerRule, get_current_context, task, task_group

from mailslice.airflow.approval import ApproveStep, require_approval
from mailslice.airflow.assets import duty_asset, queue_asset, queues_alias, run_asset
from mailslice.airflow.dag_duty import DagDuty, final_errors
from mailslice.airflow.notifier import notify_alerts
from mailslice.airflow.run_request import is_dry, request_of
from mailslice.airflow.spark_operator import DRY_RUN, SparkStep, about
from mailslice.airflow.versions import AirflowFailException, AirflowSkipException
from mailslice.maintenance.artifacts import folder_of
from mailslice.maintenance.params import QUEUES
from mailslice.maintenance.registry import load
from mailslice.maintenance.report import BAD
from mailslice.maintenance.report import DRY_RUN as WAS_DRY
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.errors import BadInput
from mailslice.stores import open_stores


class Chain:
    """Makes the tasks of one duty, inside its DAG."""

    def __init__(self, dag_duty: DagDuty) -> None:
        self.dag_duty = dag_duty

    def five_steps(
        self, noun: str, *, plan_in_spark: bool = True, apply_in_spark: bool = True
    ) -> None:
        """One chain a queue: plan_NOUN, check_plan, approve, apply_NOUN, verify, report."""
        duty = self.dag_duty

        @task(task_id="list_queues")
        def list_queues() -> list[str]:
            return queues_of(duty, get_current_context())

        @task_group(group_id="queue", prefix_group_id=False)
        def chain(queue: str) -> None:
            self._steps(noun, queue, plan_in_spark, apply_in_spark)

        queues = chain.expand(queue=list_queues())
        if duty.followed:
            queues >> _all_queues(duty)()

    def one_chain(
        self, noun: str, *, plan_in_spark: bool = True, apply_in_spark: bool = True
    ) -> None:
        """As `five_steps`, once, for a duty that is not about one queue."""
        report = self._steps(noun, NO_QUEUE, plan_in_spark, apply_in_spark)
        if self.dag_duty.followed:
            report >> _all_queues(self.dag_duty)()

    def _steps(self, noun: str, queue: Any, plan_in_spark: bool, apply_in_spark: bool) -> Any:
        duty = self.dag_duty

        def step(task_id: str, name: str, in_spark: bool = False) -> Any:
            if not in_spark:
                return _step(task_id, duty, name)(queue)
            return SparkStep(task_id=task_id, dag_duty=duty, step=name, mail_queue=queue)

        ids = [f"plan_{noun}", "check_plan", f"apply_{noun}", "verify"]
        tasks = [step(ids[0], "plan", plan_in_spark), step(ids[1], "check")]
        if not duty.reads_only:
            ids.insert(2, "approve")
            tasks.append(ApproveStep(task_id="approve", dag_duty=duty, mail_queue=queue))
        tasks += [step(ids[-2], "apply", apply_in_spark), step(ids[-1], "verify")]
        tasks.append(_report(duty, ids)(queue))
        for before, after in pairwise(tasks):
            before >> after
        return tasks[-1]


def queues_of(duty: DagDuty, context: Mapping[str, Any]) -> list[str]:
    """The queues of the form, or all that RabbitMQ knows. An unknown one fails in its own chain."""
    requested = context["params"][QUEUES] or ()
    asked = dict.fromkeys(name for name in requested if name.strip())
    if requested and not asked:
        raise AirflowFailException(
            f"{QUEUES}={list(requested)!r} names no queue: allowed are names, or nothing "
            "at all for every queue"
        )
    with final_errors():
        settings = duty.ready()
        if asked:
            return list(asked)
        with open_stores(settings) as stores:
            return sorted(stores.rabbitmq.names())


def _all_queues(duty: DagDuty) -> Callable[[], Any]:
    @task(
        task_id="all_queues",
        trigger_rule=TriggerRule.NONE_FAILED,
        outlets=[run_asset(duty.duty, duty.prefix)],
    )
    def all_queues() -> None:
        """Start the DAGs that follow this duty, unless a queue failed or the run was dry."""
        if is_dry(get_current_context()):
            raise AirflowSkipException(DRY_RUN)

    return all_queues


def _step(task_id: str, duty: DagDuty, step: str) -> Callable[[str], Any]:
    @task(task_id=task_id, map_index_template="{{ task.op_args[0] }}")
    def run(queue: str) -> dict[str, Any]:
        context = get_current_context()
        if step == "apply" and is_dry(context):
            raise AirflowSkipException(DRY_RUN)
        with final_errors():
            if step == "apply" and duty.asks(context):
                require_approval(request_of(context, duty.duty, queue), duty.ready())
        return _xcom_of(run_in_process(duty, step, queue))

    return run


def _report(duty: DagDuty, before: list[str]) -> Callable[[str], Any]:
    asset, alias = duty_asset(duty.duty, duty.prefix), queues_alias(duty.duty, duty.prefix)

    @task(
        task_id="report",
        map_index_template="{{ task.op_args[0] }}",
        trigger_rule=TriggerRule.ALL_DONE,
        outlets=[asset, alias] if load(duty.duty).needs_queue else [asset],
    )
    def report(queue: str) -> dict[str, Any]:
        from mailslice.maintenance.runner import record_unsent_alerts

        context = get_current_context()
        failed = failed_steps(context, before)
        recorded = _recorded(context, duty, queue) if failed else None
        written = recorded or run_in_process(duty, "report", queue)
        if not notify_alerts(written, duty.prefix):
            record_unsent_alerts(written, duty.load())
        names = ("run", "status", "planned", "applied", "failed")
        fields = {"duty": duty.duty, "queue": queue} | {name: written.get(name) for name in names}
        context["outlet_events"][asset].extra = fields
        if queue != NO_QUEUE and written["status"] != WAS_DRY:
            of_queue = queue_asset(duty.duty, queue, duty.prefix)
            context["outlet_events"][alias].add(of_queue, extra=fields)
        if failed or written["status"] in BAD:
            steps = f"{' and '.join(failed)} failed: " if failed else ""
            raise AirflowFailException(
                f"{about(duty.duty, '', queue)}: {steps}{written.get('message')} "
                f"(run {written.get('run')})"
            )
        return _xcom_of(written)

    return report


def failed_steps(context: Any, before: list[str]) -> list[str]:
    """The failed tasks of this queue's chain, by Airflow: a killed task writes nothing."""
    ti = context["ti"]
    states = ti.get_task_states(
        dag_id=ti.dag_id, task_ids=before, map_index=ti.map_index, run_ids=[ti.run_id]
    )[ti.run_id]
    failed = {key for key, state in states.items() if state == "failed"}
    return [name for name in before if failed & {name, f"{name}_{ti.map_index}"}]


def _recorded(context: Any, duty: DagDuty, queue: str) -> dict[str, Any] | None:
    """The report that a step wrote when it raised; None for a killed step, which wrote none.

    The ledger's row alone proves nothing: it may be of a try before the tasks were cleared.
    """
    from mailslice.maintenance.ledger import Ledger
    from mailslice.maintenance.runner import FAILURE

    settings = duty.load()
    with suppress(BadInput):
        request = request_of(context, duty.duty, queue)
        if folder_of(request, settings).read_json(FAILURE) is not None:
            with open_stores(settings) as stores:
                reports = Ledger(stores, settings).list(request.duty, request.queue)
            report = next((one for one in reports if one["run"] == request.run), None)
            return report if report and report["status"] in BAD else None
    return None


def _xcom_of(summary: dict[str, Any]) -> dict[str, Any]:
    """The single values for XCom; lists stay in the run's folder."""
    single = (str, int, float, type(None))
    return {name: value for name, value in summary.items() if isinstance(value, single)}


def run_in_process(duty: DagDuty, step: str, queue: str) -> dict[str, Any]:
    """Run one step in this process. TryAgain is retried; all other errors are final."""
    from mailslice.maintenance.runner import run_step, small_run_summary

    # Otherwise it writes a hundred lines about itself to the task's log.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    with final_errors():
        request, settings = request_of(get_current_context(), duty.duty, queue), duty.ready()
        return small_run_summary(step, request, settings) or run_step(step, request, settings)
