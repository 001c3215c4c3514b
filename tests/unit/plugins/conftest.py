"""The plugin's app with Airflow's simple auth manager, without database and stores: the page reads
doubles.
"""

import importlib

import pytest


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """The module of the page.

    Airflow reads its settings at import, so the fixture sets them before.
    """
    patch = pytest.MonkeyPatch()
    patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "x" * 64)
    yield importlib.import_module("mailslice.airflow.page_plugin")
    patch.undo()


@pytest.fixture
def simple_auth_manager(plugin):
    """Airflow's simple auth manager, as in its API server."""
    from airflow import settings
    from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
    from airflow.models import import_all_models
    from airflow.models.base import Base

    import_all_models()
    Base.metadata.create_all(settings.engine)
    yield create_auth_manager()
    purge_cached_app()
