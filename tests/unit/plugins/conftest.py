"""The plugin's app with Airflow's simple auth manager, no database and no stores: what the page
reads is a double.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def plugin(tmp_path_factory):
    """The module as Airflow loads it: by its file.

    Airflow reads its settings when it is imported, so they come first.
    """
    patch = pytest.MonkeyPatch()
    patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "x" * 64)
    spec = importlib.util.spec_from_file_location(
        "mailslice_plugin", ROOT / "plugins" / "mailslice_plugin.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    patch.undo()
