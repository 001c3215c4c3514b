"""Run as a process: parses the DAG files of argv[1] and prints what the tests ask about, one JSON
object on the last line.
"""

import json
import sys
import time
from datetime import UTC, datetime

from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction
from pendulum import instance

HEAVY = {
    "pyspark",
    "great_expectations",
    "cassandra",
    "pandas",
    "pyarrow",
    "matplotlib",
    "boto3",
    "pika",
    "obstore",
}


def main() -> None:
    before = time.process_time()
    bag = DagBag(sys.argv[1])
    seconds = time.process_time() - before
    heavy = sorted({name.split(".")[0] for name in sys.modules} & HEAVY)
    dags = {dag_id: about(dag) for dag_id, dag in bag.dags.items()}
    print(
        json.dumps({"errors": bag.import_errors, "seconds": seconds, "heavy": heavy, "dags": dags})
    )


def about(dag):
    timetable = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
    now = instance(datetime.now(UTC))
    by_itself = timetable.next_dagrun_info(
        last_automated_data_interval=None,
        restriction=TimeRestriction(now.subtract(days=9), None, catchup=False),
    )
    backfilled = timetable.next_dagrun_info(
        last_automated_data_interval=None,
        restriction=TimeRestriction(
            instance(datetime(2026, 11, 1, tzinfo=UTC)), None, catchup=True
        ),
    )
    group = dag.task_group.children.get("queue")
    return {
        "doc": dag.doc_md,
        "tags": sorted(dag.tags),
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "timeout": dag.dagrun_timeout.total_seconds(),
        "callback": type(dag.on_failure_callback).__name__,
        "deadlines": [each.interval.total_seconds() for each in _deadlines(dag)],
        "params": {
            name: dag.params.get_param(name).resolve(suppress_exception=True) for name in dag.params
        },
        "schemas": {name: dag.params.get_param(name).schema for name in dag.params},
        "fires_by_itself": by_itself is not None,
        "periodic": timetable.periodic,
        "backfilled": backfilled
        and [backfilled.data_interval.start.isoformat(), backfilled.data_interval.end.isoformat()],
        "mapped": group and type(group).__name__,
        "group_upstream": group and sorted(group.upstream_task_ids),
        "in_group": group and sorted(group.children),
        "tasks": {task.task_id: of_task(task) for task in dag.tasks},
    }


def _deadlines(dag):
    found = dag.deadline or []
    return found if isinstance(found, list) else [found]


def of_task(task):
    return {
        "type": type(task).__name__,
        "upstream": sorted(task.upstream_task_ids),
        "trigger": task.trigger_rule.value,
        "retries": task.retries,
        "policy": None
        if task.retry_policy is None
        else [[rule.exception_path, rule.action.value] for rule in task.retry_policy.rules],
        "otherwise": None if task.retry_policy is None else task.retry_policy.default.value,
        "timeout": task.execution_timeout.total_seconds(),
        "pool": task.pool,
        "names": task.map_index_template,
        "outlets": [asset.uri for asset in task.outlets],
        "duty": getattr(task, "duty", None),
        "step": getattr(task, "step", None),
    }


main()
