"""MariaDB of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from mailslice.model.mariadb_url import MariaDbUrl


@pytest.fixture
def mariadb_root() -> Callable[..., MariaDbUrl]:
    """The administrator's address; keywords change its parts."""
    port = os.environ.get("MAILSLICE_TEST_MARIADB_PORT")
    if port is None:
        pytest.skip("MAILSLICE_TEST_MARIADB_PORT names no MariaDB")

    def address(**changes: Any) -> MariaDbUrl:
        parts = {"host": "127.0.0.1", "port": int(port), "user": "root", "password": ""}
        return MariaDbUrl(**{**parts, "database": "", **changes})

    return address
