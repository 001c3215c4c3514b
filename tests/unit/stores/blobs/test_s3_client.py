"""One boto3 client for the buckets of a process."""

from __future__ import annotations

import os
from base64 import b64encode
from datetime import timedelta
from hashlib import md5
from io import BytesIO
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from pydantic import SecretStr
from urllib3 import HTTPResponse

from mailslice.model.errors import BadSetting
from mailslice.model.mail import BlobId
from mailslice.model.settings import BlobProvider, S3Settings, load_settings
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


def test_a_bulk_delete_has_the_md5_that_minio_before_2025_asks_for() -> None:
    settings = SETTINGS.model_copy(update={"endpoint": "http://127.0.0.1:11"})
    with S3BlobStore(settings, "mails") as store:
        sent: list[Any] = []

        def answer(request: Any, **_: object) -> AWSResponse:
            """The first time it is too busy: boto3 signs anew."""
            sent.append(request)
            xml = b"<DeleteResult><Deleted><Key>a</Key></Deleted></DeleteResult>"
            body = HTTPResponse(BytesIO(xml), preload_content=False)
            return AWSResponse(request.url, 200 if sent[1:] else 503, {}, body)

        store.client.meta.events.register("before-send.s3.DeleteObjects", answer)
        assert store.delete_many([BlobId("a"), BlobId("b//c")]) == {}
    assert len(sent) == 2
    for request in sent:
        assert b"<Key>b//c</Key>" in request.body
        digest = b64encode(md5(request.body, usedforsecurity=False).digest())
        assert [v for k, v in request.headers.items() if k == "Content-MD5"] == [digest]
        assert b"content-md5;" in request.headers["Authorization"]


def test_one_key_alone_is_refused_and_is_none_of_azure_and_gcs() -> None:
    for name, shown in (("ACCESS_KEY", "unset"), ("SECRET_KEY", r"\*\*\*")):
        with pytest.raises(BadSetting, match=f"SECRET_KEY={shown} .*: allowed is both or none"):
            load_settings({f"MAILSLICE_S3_{name}": "x"})
    with pytest.raises(BadSetting, match="allowed is both or none"):
        load_settings({"MAILSLICE_S3_ENDPOINT": "http://key@127.0.0.1:9"})
    assert load_settings({"MAILSLICE_S3_ENDPOINT": "http://127.0.0.1:9"}).s3.access_key is None
    assert S3Settings(provider=BlobProvider.AZURE, access_key="account").secret_key is None
    assert S3Settings(provider=BlobProvider.GCS, secret_key=SecretStr("{}")).access_key is None
