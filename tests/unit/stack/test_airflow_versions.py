"""Airflow of other versions: where no registry answers, a sentence says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from mailslice.model.settings import clone_root
from stack.airflow_versions import OLDEST, airflow_python
from stack.program import CannotStart


def test_a_registry_that_does_not_answer_is_an_error_with_its_remedy_and_leaves_no_venv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    message = rf"^Airflow {OLDEST} cannot be installed \(.*network.*\)\. Remedy: check the network"
    for _ in range(2):
        with pytest.raises(CannotStart, match=message):
            airflow_python(OLDEST, clone_root(), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/bin")), "what has the name is whole"
