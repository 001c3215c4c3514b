"""One boto3 client for the buckets of a process."""

from __future__ import annotations

import os
from datetime import timedelta

from pydantic import SecretStr

from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.s3_store import S3BlobStore

SETTINGS = S3Settings(endpoint="http://127.0.0.1:9", access_key="a", secret_key=SecretStr("b"))


def client(**changes: object) -> object:
    settings = SETTINGS.model_copy(update=changes)
    return S3BlobStore(settings, settings.bucket).client


def test_buckets_share_a_client_and_other_settings_have_their_own() -> None:
    assert client(bucket="one") is client(bucket="two")
    for other in (
        {"endpoint": "http://127.0.0.1:10"},
        {"secret_key": SecretStr("c")},
        {"timeout": timedelta(seconds=7)},
    ):
        assert client(**other) is not client()


def test_a_forked_process_does_not_use_the_connections_of_its_parent() -> None:
    parents = client()
    child = os.fork()
    if child == 0:
        os._exit(0 if client() is not parents else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
