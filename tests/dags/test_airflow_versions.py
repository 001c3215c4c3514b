"""Every line of Airflow that is supported imports all DAGs and the plugins, with one meaning."""

import os

import pytest

from mailslice.model.settings import clone_root
from stack.airflow_versions import BETWEEN, OLDEST, airflow_python
from stack.settings import Profile, stack_settings
from tests.dags.conftest import parse

pytestmark = pytest.mark.soak
SAME = ("doc", "tags", "paused", "timeout", "params", "follows", "fires_by_itself", "backfilled")
"""What a DAG is, whatever the version: only the retry policy (3.3) differs."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [OLDEST, BETWEEN])
def test_all_dags_and_the_plugins_are_the_same_in_an_older_airflow(version, parsed, tmp_path):
    cache = stack_settings(Profile.TEST, dict(os.environ)).sizes.cache
    older = parse(tmp_path, airflow_python(version, clone_root(), cache))
    assert older["airflow"] == version != parsed["airflow"]
    assert (older["errors"], older["plugins"]) == ({}, parsed["plugins"])
    for dag, about in parsed["dags"].items():
        same = older["dags"][dag]
        assert {name: same[name] for name in SAME} == {name: about[name] for name in SAME}
        assert same["deadlines"] == about["deadlines"]
        assert list(same["tasks"]) == list(about["tasks"])
        for task, newer in about["tasks"].items():
            assert {**same["tasks"][task], "policy": None, "otherwise": None} == {
                **newer,
                "policy": None,
                "otherwise": None,
            }
