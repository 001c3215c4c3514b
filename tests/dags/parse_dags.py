"""Parses the DAG files in argv[1], as a process of its own. Prints the facts that tests check as a
JSON object on the last line. Works with every supported version of Airflow.
"""

import json
import sys
import time
from datetime import UTC, datetime

from airflow.timetables.base import TimeRestriction
from airflow.version import version
from pendulum import instance

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # below 3.2
    from airflow.models.dagbag import DagBag
try:
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:  # below 3.2
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

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
        json.dumps(
            {
                "airflow": version,
                "errors": bag.import_errors,
                "seconds": seconds,
                "heavy": heavy,
                "dags": dags,
                "plugins": plugins(),
            }
        )
    )


def plugins():
    """The names of mailslice's plugins, and the import errors of all plugins."""
    from airflow import plugins_manager

    plugins_manager.ensure_plugins_loaded()
    if hasattr(plugins_manager, "_get_plugins"):  # 3.2
        loaded, errors = plugins_manager._get_plugins()
    else:
        loaded, errors = plugins_manager.plugins, plugins_manager.import_errors
    names = sorted(one.name for one in loaded if "mailslice" in str(one.name))
    return {"names": names, "errors": errors}


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
        "paused": dag.is_paused_upon_creation,
        "file": dag.fileloc.rpartition("/")[2],
        "follows": sorted(uris(dag)),
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


def uris(dag):
    """The assets that start the DAG."""
    condition = getattr(dag.timetable, "asset_condition", None)
    return [asset.uri for asset in condition.objects] if condition else []


def _deadlines(dag):
    found = getattr(dag, "deadline", None) or []
    return found if isinstance(found, list) else [found]


def of_task(task):
    policy = getattr(task, "retry_policy", None)
    return {
        "type": type(task).__name__,
        "upstream": sorted(task.upstream_task_ids),
        "trigger": task.trigger_rule.value,
        "retries": task.retries,
        "policy": None
        if policy is None
        else [[rule.exception_path, rule.action.value] for rule in policy.rules],
        "otherwise": None if policy is None else policy.default.value,
        "timeout": task.execution_timeout.total_seconds(),
        "pool": task.pool,
        "names": task.map_index_template,
        "connection": getattr(task, "_conn_id", None),
        "outlets": [getattr(asset, "uri", asset.name) for asset in task.outlets],
        "duty": getattr(task, "duty", None),
        "step": getattr(task, "step", None),
    }


main()
