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


@pytest.fixture
def simple_auth_manager(plugin):
    """Airflow's own, as its API server has it."""
    from airflow import settings
    from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
    from airflow.models import import_all_models
    from airflow.models.base import Base

    import_all_models()
    Base.metadata.create_all(settings.engine)
    yield create_auth_manager()
    purge_cached_app()
