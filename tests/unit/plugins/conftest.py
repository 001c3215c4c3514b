"""The plugin's app with Airflow's simple auth manager, no database and no stores: what the page
reads is a double.
"""

import importlib

import pytest


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """The module of the page.

    Airflow reads its settings when it is imported, so they come first.
    """
    patch = pytest.MonkeyPatch()
    patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "x" * 64)
    yield importlib.import_module("mailslice.airflow.page_plugin")
    patch.undo()
