"""moto as the S3 server: the tests of the content store and of a worker, run against it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stack.moto import moto_command
from stack.program import answers_http
from stack.settings import Profile, stack_settings
from tests.ports import free_port
from tests.versions.tiers import run_tests

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1700)]
_LONGEST_START = 60.0
TESTS = (
    "tests/services/blobs/test_blobs.py",
    "tests/services/worker/test_round_trip.py",
    "tests/services/worker/test_large.py",
    "tests/services/duties/blob_gc",
)
_BLOBS = "tests/services/blobs/test_blobs.py"
OF_S3PROXY = (
    f"{_BLOBS}::TestS3::test_a_key_that_the_server_cannot_express_is_missing_and_no_outage",
    f"{_BLOBS}::test_a_bucket_is_missing_for_whom_it_may_not_be_told_and_unknown_without_an_answer",
    f"{_BLOBS}::test_a_wrong_key_names_its_settings_and_not_itself",
)
"""moto takes any credentials and any key."""


@pytest.fixture(scope="module")
def services(stack: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """MAILSLICE_* of the session's RabbitMQ and Cassandra, and of moto."""
    port = free_port()
    cache = stack_settings(Profile.TEST, dict(os.environ)).sizes.cache
    server = subprocess.Popen(
        moto_command(cache, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _LONGEST_START
        while answers_http(f"{endpoint}/", allowed=(200, 403)) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield {**stack, "MAILSLICE_S3_ENDPOINT": endpoint}
    finally:
        server.terminate()
        server.wait()


def test_the_tests_of_content_and_its_collection_pass(
    services: Mapping[str, str], tmp_path: Path
) -> None:
    left_out = [word for test in OF_S3PROXY for word in ("--deselect", test)]
    assert run_tests(services, tmp_path, *TESTS, *left_out) > 50
