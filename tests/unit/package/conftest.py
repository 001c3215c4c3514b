"""A fixture with sdist and wheel, built once."""

import pytest

from tests.wheel import build


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("package"))
