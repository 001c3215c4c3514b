"""Every DAG file: it parses, quickly and without heavy imports, has the five steps in order, and
says what it does.
"""

import ast

import pytest

from mailslice.cockpit import views
from mailslice.maintenance.registry import load, names
from tests.dags.conftest import ROOT, parse

ACTIONS = "mail_actions"
DUTIES = sorted({file.stem for file in (ROOT / "dags").glob("*.py")} - {ACTIONS})
OF_QUEUES = [duty for duty in DUTIES if load(duty).needs_queue]
OF_NO_QUEUE = [duty for duty in DUTIES if not load(duty).needs_queue]
IN_SPARK = {"queue_cleanup": {"plan", "apply"}, "queue_size": {"plan"}}
AIRFLOW_ONLY = {"queues", "approve"}
ON_DEMAND = {"republish_lost", "migrate_v3_to_v4", "stuck_mails_postal"}
"""The last one only where no MAILSLICE_POSTAL_URL is set."""
READ_ONLY = {"queue_size", "queue_audit"}
FOLLOWERS = {"reclaim": "mailslice://queue/cleanup/all"}
FOLLOWED = {"queue_cleanup": "all_queues"}


def noun_of(tasks):
    return next(task.removeprefix("plan_") for task in tasks if task.startswith("plan_"))


def steps(noun, dag):
    approve = [] if dag in READ_ONLY else ["approve"]
    return [f"plan_{noun}", "check_plan", *approve, f"apply_{noun}", "verify", "report"]


def test_every_file_parses(parsed):
    assert parsed["errors"] == {}
    assert parsed["plugins"] == {"names": ["mailslice", "mailslice_timetables"], "errors": {}}


def test_these_are_the_dags_and_each_duty_has_one(parsed):
    assert sorted(parsed["dags"]) == sorted([*DUTIES, ACTIONS])
    assert names() == DUTIES
    assert [about["file"] for about in parsed["dags"].values()] == [
        f"{dag}.py" for dag in parsed["dags"]
    ]


def test_parsing_imports_nothing_heavy(parsed):
    assert parsed["heavy"] == []
    assert parsed["seconds"] < 15, "CPU seconds; Airflow gives a file up after 30 s"


@pytest.mark.parametrize("dag", OF_QUEUES)
def test_the_five_steps_stand_in_order_one_chain_a_queue(parsed, dag):
    tasks = parsed["dags"][dag]["tasks"]
    order = ["list_queues", *steps(noun_of(tasks), dag)]
    assert sorted(set(tasks) - {FOLLOWED.get(dag)}) == sorted(order)
    assert [sorted(tasks[task]["upstream"]) for task in order] == [
        [],
        ["list_queues"],
        *(sorted(["list_queues", before]) for before in order[1:-1]),
    ]
    assert parsed["dags"][dag]["group_upstream"] == ["list_queues"]
    assert parsed["dags"][dag]["mapped"] == "MappedTaskGroup"
    assert parsed["dags"][dag]["in_group"] == sorted(order[1:])


@pytest.mark.parametrize("dag", OF_NO_QUEUE)
def test_a_duty_without_queue_has_one_chain(parsed, dag):
    tasks = parsed["dags"][dag]["tasks"]
    order = steps(noun_of(tasks), dag)
    assert sorted(tasks) == sorted(order)
    assert [tasks[task]["upstream"] for task in order] == [[], *([before] for before in order[:-1])]


@pytest.mark.parametrize("dag", DUTIES)
def test_only_the_report_runs_after_a_failure(parsed, dag):
    triggers = {task: about["trigger"] for task, about in parsed["dags"][dag]["tasks"].items()}
    others = {"report": "all_done", "all_queues": "none_failed"}
    assert triggers == {task: others.get(task, "all_success") for task in triggers}


@pytest.mark.parametrize("dag", DUTIES)
def test_spark_steps_share_the_pool_and_know_their_duty(parsed, dag):
    spark = {
        task: about
        for task, about in parsed["dags"][dag]["tasks"].items()
        if about["type"] == "SparkStep"
    }
    assert all(
        (about["pool"], about["connection"], about["duty"], about["step"])
        == ("spark", "spark_default", dag, task.split("_")[0])
        for task, about in spark.items()
    )
    if dag in IN_SPARK:
        assert {about["step"] for about in spark.values()} == IN_SPARK[dag]


@pytest.mark.parametrize("dag", OF_QUEUES)
def test_the_ui_shows_queue_names_instead_of_indexes(parsed, dag):
    tasks = parsed["dags"][dag]["tasks"]
    assert all(
        "queue" in about["names"] or "op_args" in about["names"]
        for task, about in tasks.items()
        if task not in ("list_queues", "all_queues")
    )


@pytest.mark.parametrize("dag", DUTIES)
def test_only_a_store_that_is_away_is_tried_again(parsed, dag):
    for about in parsed["dags"][dag]["tasks"].values():
        assert about["retries"] > 0
        assert about["policy"] == [["mailslice.model.errors.TryAgain", "retry"]]
        assert about["otherwise"] == "fail"


@pytest.mark.parametrize("dag", DUTIES)
def test_runs_are_bounded_and_failures_are_told(parsed, dag):
    about = parsed["dags"][dag]
    assert (about["catchup"], about["max_active_runs"], about["callback"]) == (
        False,
        1,
        "DutyNotifier",
    )
    assert all(0 < task["timeout"] <= about["timeout"] for task in about["tasks"].values())
    assert [0 < deadline < about["timeout"] for deadline in about["deadlines"]] == [True]


def test_a_new_airflow_runs_what_only_reads_and_nothing_else(parsed):
    on = {dag for dag, about in parsed["dags"].items() if about["paused"] is False}
    assert on - {ACTIONS} == READ_ONLY
    assert {d for d in parsed["dags"] if "reads only" in tags(parsed, d)} == READ_ONLY
    assert views.READ_ONLY == READ_ONLY, "the page's forms of the others have `approve`"
    assert {about["paused"] for about in parsed["dags"].values()} == {True, False}


def tags(parsed, dag):
    return parsed["dags"][dag]["tags"]


@pytest.mark.parametrize("dag", DUTIES)
def test_the_form_is_dry_where_a_run_would_change_something(parsed, dag):
    params = parsed["dags"][dag]["params"]
    assert params["dry_run"] is (dag not in READ_ONLY)
    assert params.get("approve") is (None if dag in READ_ONLY else False)


def test_the_disk_is_reclaimed_after_a_cleanup(parsed):
    follows = {dag: about["follows"] for dag, about in parsed["dags"].items()}
    follows.pop(ACTIONS)
    assert follows == {dag: [FOLLOWERS[dag]] if dag in FOLLOWERS else [] for dag in DUTIES}
    told = parsed["dags"]["queue_cleanup"]["tasks"]["all_queues"]
    assert told["outlets"] == [FOLLOWERS["reclaim"]]
    assert told["upstream"] == ["report"]


@pytest.mark.parametrize("dag", DUTIES)
def test_the_report_tells_its_asset(parsed, dag):
    outlets = {
        task: about["outlets"]
        for task, about in parsed["dags"][dag]["tasks"].items()
        if about["outlets"]
    }
    outlets.pop(FOLLOWED.get(dag), None)
    assert list(outlets) == ["report"]
    asset, *aliases = outlets["report"]
    assert asset.startswith("mailslice://")
    assert aliases == ([f"{dag} queues"] if dag in OF_QUEUES else [])


@pytest.mark.parametrize("dag", DUTIES)
def test_the_text_says_purpose_dangers_params_and_an_example(parsed, dag):
    doc = parsed["dags"][dag]["doc"]
    assert doc.startswith("### ")
    for part in (
        "**Dangers.**",
        "**Params.**",
        "**Example**",
        f"airflow dags trigger {dag}",
        f"mailslice duty run {dag}",
    ):
        assert part in doc
    for param in parsed["dags"][dag]["params"]:
        assert f"`{param}`" in doc


def test_params_of_the_cleanup_form(parsed):
    assert parsed["dags"]["queue_cleanup"]["params"] == {
        "queues": [],
        "dry_run": True,
        "approve": False,
        "grace": None,
        "reason": None,
        "max_share": 0.0,
        "unusual": False,
        "intensity": 1.0,
        "restarted": None,
        "sweep": False,
        "aside": False,
        "rate": 0,
    }
    schemas = parsed["dags"]["queue_cleanup"]["schemas"]
    assert (schemas["queues"]["type"], schemas["queues"]["items"]) == (
        ["null", "array"],
        {"type": "string"},
    )
    assert (schemas["max_share"]["minimum"], schemas["max_share"]["maximum"]) == (0, 1)


@pytest.mark.parametrize("dag", DUTIES)
def test_the_duty_takes_what_the_form_gives_and_has_the_same_defaults(parsed, dag):
    given = {
        name: value
        for name, value in parsed["dags"][dag]["params"].items()
        if name not in AIRFLOW_ONLY
    }
    assert load(dag).params.parse({**given, "dry_run": False}) == load(dag).params()


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("90s", True),
        ("15m", True),
        (" 1 h ", True),
        ("PT1H", True),
        ("", True),
        ("0", True),
        ("soon", False),
        ("5", False),
        ("-1s", False),
    ],
)
def test_the_form_refuses_what_is_no_duration(parsed, text, good):
    import re

    pattern = parsed["dags"]["queue_cleanup"]["schemas"]["grace"]["pattern"]
    assert bool(re.search(pattern, text)) is good


def test_the_cleanup_is_nightly_and_a_backfill_has_slices_to_work_on(parsed):
    about = parsed["dags"]["queue_cleanup"]
    assert about["fires_by_itself"]
    assert about["backfilled"] == ["2026-11-01T02:15:00+00:00", "2026-11-02T02:15:00+00:00"]


@pytest.mark.parametrize("dag", DUTIES)
def test_what_puts_mail_back_or_copies_it_is_asked_for_by_a_person(parsed, dag):
    by_itself = dag not in {*ON_DEMAND, *FOLLOWERS}
    assert parsed["dags"][dag]["fires_by_itself"] is by_itself


def test_postal_is_looked_at_every_five_minutes_where_its_address_is_set(tmp_path):
    dags = parse(tmp_path, MAILSLICE_POSTAL_URL_FILE="/run/secrets/postal")["dags"]
    assert dags["stuck_mails_postal"]["fires_by_itself"]


def test_a_cleanup_that_takes_too_long_is_told_of_before_it_is_ended(parsed):
    about = parsed["dags"]["queue_cleanup"]
    assert about["deadlines"] == [4 * 3600]
    assert about["deadlines"][0] < about["timeout"]


def test_the_size_is_measured_every_quarter_of_an_hour(parsed):
    assert parsed["dags"]["queue_size"]["backfilled"] == [
        "2026-11-01T00:00:00+00:00",
        "2026-11-01T00:15:00+00:00",
    ]
    assert parsed["dags"]["queue_size"]["fires_by_itself"]


@pytest.mark.parametrize("dag", DUTIES)
def test_with_schedules_off_nothing_fires_by_itself_and_backfills_still_work(
    parsed, parsed_quiet, dag
):
    quiet = parsed_quiet["dags"][dag]
    assert parsed_quiet["errors"] == {}
    assert not quiet["fires_by_itself"]
    assert quiet["follows"] == []
    assert quiet["periodic"] is (dag not in {*ON_DEMAND, *FOLLOWERS})
    assert quiet["backfilled"] == parsed["dags"][dag]["backfilled"]


def test_dag_files_hold_no_logic():
    for file in (ROOT / "dags").glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert [function.name for function in functions] == [file.stem]
        assert not [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.If | ast.For | ast.While | ast.Try)
        ]
        imported = {
            node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        }
        assert imported <= {"datetime", "mailslice"}


def test_the_dag_of_actions_never_starts_by_itself_and_does_not_wait_for_an_unpause(parsed):
    about = parsed["dags"][ACTIONS]
    assert (about["paused"], about["fires_by_itself"], about["catchup"]) == (False, False, False)
    assert about["max_active_runs"] == 8
    assert {name: task["upstream"] for name, task in about["tasks"].items()} == {
        "select": [],
        "act": ["select"],
    }
    for task in about["tasks"].values():
        assert task["policy"] == [["mailslice.model.errors.TryAgain", "retry"]]
    assert about["callback"] == "DutyNotifier"


def test_the_form_of_actions_asks_for_queue_and_action_and_its_text_says_each_param(parsed):
    about = parsed["dags"][ACTIONS]
    assert list(about["params"]) == [
        *("queue", "action", "sender", "recipient", "domain", "name", "older_than", "ids", "to"),
        *("run", "lasts", "digest", "accept_duplicates", "reason"),
    ]
    assert about["schemas"]["action"]["enum"] == [
        *("delete", "clear", "flush", "retry", "delay", "move", "republish", "undelete"),
        *("hold", "release", "release_stuck", "discard_stuck"),
    ]
    for part in ("**Dangers.**", "**Params.**", "**Example**", "airflow dags trigger mail_actions"):
        assert part in about["doc"]
    for param in about["params"]:
        assert f"- `{param}` (`" in about["doc"]
