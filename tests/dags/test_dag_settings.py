"""MAILSLICE_AIRFLOW_CONFIG: what a deployment sets about its DAGs, and what is refused."""

import re
from datetime import timedelta

import pytest
import yaml

from mailslice.airflow.dag_settings import DagSettings, OneDag, load_dag_settings
from mailslice.airflow.deployments import Deployment, leave
from mailslice.airflow.duty_dag import Declaration, Tag, build, dag_arguments, schedule_of
from mailslice.airflow.notifier import DutyNotifier
from mailslice.maintenance import registry
from mailslice.model.errors import BadSetting
from mailslice.model.settings import clone_root, load_settings
from tests.dags.conftest import parse

EXAMPLE = re.search(
    r"^```yaml\n(.*?)^```", (clone_root() / "docs/airflow.md").read_text(), re.MULTILINE | re.DOTALL
)[1]


@pytest.fixture
def written(tmp_path):
    """Writes a file of settings and loads it."""

    def load(text):
        (tmp_path / "dags.yaml").write_text(text, encoding="utf-8")
        return load_dag_settings({"MAILSLICE_AIRFLOW_CONFIG": str(tmp_path / "dags.yaml")})

    return load


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The DAGs with the example of docs/airflow.md."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags.yaml").write_text(EXAMPLE, encoding="utf-8")
    return parse(home, MAILSLICE_AIRFLOW_CONFIG=str(home / "dags.yaml"))


def test_without_a_file_and_with_an_empty_one_everything_is_as_the_dag_files_say(written):
    assert load_dag_settings({}) == written("") == written("# nothing\n") == written("{}")


def test_the_example_of_the_page_shapes_the_dags(example):
    assert example["errors"] == {}
    dags = example["dags"]
    assert len(dags) == len(registry.names()) + 1
    assert all(dag.startswith("mail_") for dag in dags)
    assert all("team-mail" in about["tags"] for about in dags.values())
    spark = [
        (task["pool"], task["connection"])
        for about in dags.values()
        for task in about["tasks"].values()
        if task["type"] == "SparkStep"
    ]
    assert set(spark) == {("spark_prod", "spark_prod")}
    cleanup = dags["mail_queue_cleanup"]
    assert cleanup["backfilled"] == ["2026-11-01T00:30:00+00:00", "2026-11-02T00:30:00+00:00"], (
        "01:30 in Berlin"
    )
    assert (cleanup["timeout"], cleanup["deadlines"]) == ((8 + 12) * 3600, [(5 + 12) * 3600])
    assert cleanup["params"]["approve"] is True
    assert {task["retries"] for task in cleanup["tasks"].values()} == {5}
    assert dags["mail_reclaim"]["follows"] == []
    assert dags["mail_reclaim"]["fires_by_itself"]
    assert "all_queues" not in cleanup["tasks"], "nobody follows it any more"
    assert dags["mail_stuck_mails"]["paused"] is False
    assert not dags["mail_blob_gc"]["fires_by_itself"]
    assert not dags["mail_blob_gc"]["periodic"]
    outlets = cleanup["tasks"]["report"]["outlets"]
    assert outlets == ["mailslice://mail_queue/cleanup", "mail_queue_cleanup queues"]


def declared(duty, **more):
    times = {"timeout": timedelta(hours=2), "deadline": timedelta(hours=1)}
    return Declaration(duty=duty, doc="", tags=[Tag.MAIL_QUEUE], **{**times, **more})


def test_a_prefix_is_in_the_assets_that_are_followed(written):
    settings = written("{prefix: eu., dags: {blob_gc: {after: [queue_cleanup, reclaim]}}}")
    cleaned, reclaimed = "mailslice://eu.queue/cleanup/all", "mailslice://eu.cassandra/reclaim/all"
    follows = {
        duty: [asset.uri for asset in schedule_of(declared(duty), settings, settings.prefix)]
        for duty in ("reclaim", "blob_gc")
    }
    assert follows == {"reclaim": [cleaned], "blob_gc": [cleaned, reclaimed]}
    dag = build(
        declared("reclaim"), lambda chain: chain.one_chain("reclaim"), settings, Deployment()
    )
    assert [asset.uri for asset in dag.get_task("all_queues").outlets] == [reclaimed]


@pytest.mark.parametrize(
    ("text", "duties"),
    [
        ("{dags: {blob_gc: {after: [blob_gc]}}}", ["blob_gc"]),
        ("{dags: {queue_cleanup: {after: [reclaim]}}}", ["queue_cleanup", "reclaim"]),
    ],
)
def test_duties_that_would_start_each_other_for_ever_are_refused(written, text, duties):
    settings = written(text)
    for duty in duties:
        with pytest.raises(
            BadSetting, match=rf"{duties[0]}.* -> .*{duties[-1]}.*; allowed: no cir"
        ):
            schedule_of(declared(duty), settings, "")
    assert schedule_of(declared("queue_size", schedule="@daily"), settings, "") is not None


def test_a_bad_file_is_an_import_error_that_names_file_key_and_what_is_allowed(tmp_path):
    file = tmp_path / "dags.yaml"
    file.write_text("dags: {queue_cleanup: {timeout: soon}}")
    errors = parse(tmp_path, MAILSLICE_AIRFLOW_CONFIG=str(file))["errors"]
    assert len(errors) == len(registry.names()) + 1
    assert all(
        f"{file}: dags.queue_cleanup.timeout='soon'" in text and "allowed: " in text
        for text in errors.values()
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pol: x", r"dags.yaml: pol is not a key; allowed: approve, .*prefix.*"),
        (
            "dags: {queue_cleanup: {prefix: x}}",
            r"dags.queue_cleanup.prefix is not a key; allowed: after, approve",
        ),
        (
            "dags: {mail_actions: {paused: true, schedule: none}}",
            r"dags.mail_actions sets schedule; allowed for duties alone",
        ),
        ("dags: {reclaim: {after: [mail_actions]}}", r"dags.reclaim.after.0='mail_actions': "),
        ("dags: {queue_clean: {}}", r"dags.queue_clean.*allowed: blob_gc, counter_repair"),
        ("dags: {reclaim: {after: [x]}}", r"dags.reclaim.after.0='x': allowed: blob_gc"),
        ("timezone: Berlin", r"timezone='Berlin': allowed: a name of the IANA"),
        ("retries: many", r"retries='many': "),
        ("retries: -1", r"retries=-1: "),
        ("retry_delay: 0s", r"retry_delay=.*allowed: more than 0s"),
        ("prefix: 'a b'", r"prefix='a b': "),
        ("approve: perhaps", r"approve='perhaps': "),
        (
            "dags: {queue_size: {schedule: every day}}",
            r"dags.queue_size.schedule='every day': .*allowed: five cron fields",
        ),
        (
            "dags: {reclaim: {schedule: '@daily', after: [queue_cleanup]}}",
            r"dags.reclaim sets schedule and after; allowed: one of them",
        ),
        ("[1, 2]", r"dags.yaml holds '\[1, 2\]'; allowed: keys and values"),
        ("a: [", r"dags.yaml is no YAML: "),
    ],
)
def test_what_is_not_allowed_is_named(written, text, says):
    with pytest.raises(BadSetting, match=says):
        written(text)


def test_a_file_that_is_missing_is_named():
    with pytest.raises(BadSetting, match=r"MAILSLICE_AIRFLOW_CONFIG='/no/such' cannot be read"):
        load_dag_settings({"MAILSLICE_AIRFLOW_CONFIG": "/no/such"})


def test_the_name_of_the_file_may_be_in_a_file_as_every_setting(tmp_path):
    name, dags = tmp_path / "name", tmp_path / "dags.yaml"
    name.write_text(f"{dags}\n")
    dags.write_text("pool: own")
    given = {"MAILSLICE_AIRFLOW_CONFIG_FILE": str(name)}
    assert load_dag_settings(given).pool == "own"
    with pytest.raises(BadSetting, match="MAILSLICE_AIRFLOW_CONFIG_FILE are both set"):
        load_dag_settings({**given, "MAILSLICE_AIRFLOW_CONFIG": str(dags)})


@pytest.mark.parametrize("nothing", ["none", "null", "~", "off", "no", "false"])
def test_no_schedule_may_be_said_in_every_way_of_yaml(written, nothing):
    settings = written(f"dags: {{queue_size: {{schedule: {nothing}}}}}")
    assert settings.of("queue_size").schedule == "none"


def test_a_dag_wins_over_the_top_and_tags_add_up(written):
    settings = written(
        "{pool: a, approve: true, tags: [x], dags: {reclaim: {pool: b, approve: false, tags: [y]}}}"
    )
    assert [settings.of(duty).pool for duty in ("reclaim", "blob_gc")] == ["b", "a"]
    assert [settings.of(duty).approve for duty in ("reclaim", "blob_gc")] == [False, True]
    assert settings.of("reclaim").tags == ("x", "y")
    acts = written("{retries: 1, dags: {mail_actions: {paused: true, deadline: 1h}}}")
    own = acts.of("mail_actions")
    assert (own.paused, own.deadline, own.retries) == (True, timedelta(hours=1), 1)


def test_a_deadline_must_come_before_the_time_out(written):
    settings = written("dags: {blob_gc: {timeout: 10m, deadline: 10m}, reclaim: {timeout: 10m}}")
    with pytest.raises(BadSetting, match="allowed: a deadline below the timeout"):
        dag_arguments(declared("blob_gc"), settings.of("blob_gc"), DutyNotifier())
    deadline = dag_arguments(declared("reclaim"), settings.of("reclaim"), DutyNotifier())[
        "deadline"
    ]
    assert deadline.interval == timedelta(minutes=5), "half of the time-out, as in the DAG's file"


def test_only_a_dag_that_may_ask_has_time_for_an_answer(parsed, tmp_path):
    file = tmp_path / "dags.yaml"
    file.write_text("approve_within: 12h")
    wait, dags = 12 * 3600, parse(tmp_path, MAILSLICE_AIRFLOW_CONFIG=str(file))["dags"]
    longer = {
        name
        for name, dag in parsed["dags"].items()
        if dags[name]["timeout"] == dag["timeout"] + wait
        and dags[name]["deadlines"] == [each + wait for each in dag["deadlines"]]
    }
    assert longer == {name for name, dag in dags.items() if "approve" in dag["tasks"]}
    same = dags.keys() - longer
    assert same == {"queue_size", "queue_audit", "mail_actions"}
    assert {name: dags[name]["timeout"] for name in same} == {
        name: parsed["dags"][name]["timeout"] for name in same
    }


def test_the_page_names_every_key_and_the_setting_is_one():
    page = (clone_root() / "docs/airflow.md").read_text()
    used = yaml.safe_load(EXAMPLE)
    assert {"prefix", "connection", "pool", "tags", "timezone", "dags"} <= set(used)
    for key in {*DagSettings.model_fields, *OneDag.model_fields} - {"dags"}:
        assert f"`{key}`" in page
    assert load_settings({"MAILSLICE_AIRFLOW_CONFIG": "/x.yaml"}).airflow.config == "/x.yaml"


def test_each_deployment_has_dags_of_its_own(written, monkeypatch):
    """MAILSLICE_CONNECTION=eu_=...: own ids, assets, settings and notifier."""
    settings, entered = written("{prefix: m., dags: {reclaim: {timeout: 2h}}}"), []
    deployment = Deployment("eu_", "mailslice_eu")
    dag = build(
        declared("reclaim"), lambda chain: entered.append(chain.dag_duty), settings, deployment
    )
    assert dag.dag_id == "m.eu_reclaim"
    (follows,) = dag.timetable.asset_condition.objects
    assert follows.uri == "mailslice://m.eu_queue/cleanup/all"
    assert dag.on_failure_callback.connection == "mailslice_eu"
    assert dag.deadline[0].callback.kwargs == {"connection": "mailslice_eu"}
    (duty,) = entered
    monkeypatch.setenv(
        "AIRFLOW_CONN_MAILSLICE_EU",
        '{"conn_type": "generic", "extra": {"MAILSLICE_QUEUE_SLICE_WINDOW": "3h"}}',
    )
    assert duty.load().queue.slice_window == timedelta(hours=3)
    leave()
