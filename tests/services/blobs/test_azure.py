"""The content store of Azure, at Microsoft's emulator."""

from __future__ import annotations

import base64
import hmac
import os
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import timedelta
from email.utils import formatdate
from functools import partial

import pytest
from pydantic import SecretStr

from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import BlobProvider, S3Settings
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.factory import open_blob_store
from mailslice.stores.blobs.object_store import ObjectBlobStore
from stack.azurite import ACCOUNT, KEY, azurite, installed
from stack.settings import Profile, stack_settings
from tests.contracts.blob_store import Buckets, EscapedKeys, MissingBucketContract
from tests.ports import free_port

pytestmark = pytest.mark.soak
_LONGEST_START = 60.0
_WRONG_KEY = SecretStr(base64.b64encode(b"x" * 64).decode())


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Settings]:
    """Settings of a server of this module's own."""
    command = installed(stack_settings(Profile.TEST, dict(os.environ)).sizes.cache)
    if command is None:
        pytest.skip("npm is not installed")
    port = free_port()
    settings = S3Settings(
        provider=BlobProvider.AZURE,
        endpoint=f"http://127.0.0.1:{port}/{ACCOUNT}",
        access_key=ACCOUNT,
        secret_key=SecretStr(KEY),
        timeout=timedelta(seconds=5),
    )
    server = subprocess.Popen(
        azurite(command, port, tmp_path_factory.mktemp("azurite")), stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + _LONGEST_START
        while (answer := create_container(settings, "first")) is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert answer == 201
        yield settings
    finally:
        server.terminate()
        server.wait()


def create_container(settings: S3Settings, name: str) -> int | None:
    """The status of the answer; None without one."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    text = (
        f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n"
        f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    )
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), "sha256"))
    headers = {"x-ms-date": date, "x-ms-version": version, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature.decode()}"
    url = f"{settings.endpoint}/{name}?restype=container"
    request = urllib.request.Request(url, method="PUT", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError:
        raise
    except OSError:
        return None


class TestAzure(EscapedKeys, MissingBucketContract):
    @pytest.fixture
    def buckets(self, settings: S3Settings) -> Buckets:
        names = f"mails-{uuid.uuid4().hex}", f"own-{uuid.uuid4().hex}"
        for name in names:
            assert create_container(settings, name) == 201
        open_async = partial(AsyncBlobStore, settings)
        return Buckets(partial(ObjectBlobStore, settings), open_async, *names)

    def test_its_clock_is_known(self, buckets: Buckets) -> None:
        with buckets.open(buckets.name) as store:
            assert abs(store.now_skew()) < timedelta(seconds=5)

    def test_a_missing_container_is_not_created(self, buckets: Buckets) -> None:
        with (
            buckets.open(buckets.missing) as store,
            pytest.raises(BadSetting, match=f"Azure at 127.*has no bucket '{buckets.missing}'"),
        ):
            store.ensure_bucket()
        with (
            buckets.open(buckets.missing) as store,
            pytest.raises(StoreUnavailable, match=buckets.missing),
        ):
            store.delete_many([BlobId("x")])


async def test_a_wrong_key_names_its_settings_and_not_itself(settings: S3Settings) -> None:
    wrong = settings.model_copy(update={"secret_key": _WRONG_KEY})
    store = open_blob_store(wrong, "first")
    for ask in (
        lambda: store.put(BlobId("x"), b"x"),
        lambda: store.get(BlobId("x")),
        lambda: list(store.list()),
        lambda: store.delete_many([BlobId("x")]),
    ):
        with pytest.raises(BadSetting, match="MAILSLICE_S3_SECRET_KEY") as raised:
            ask()
        assert _WRONG_KEY.get_secret_value() not in str(raised.value)
    with pytest.raises(BadSetting, match="MAILSLICE_S3_SECRET_KEY"):
        await AsyncBlobStore(wrong, "first").put(BlobId("x"), b"x")


async def test_a_server_that_is_down_is_named() -> None:
    settings = S3Settings(
        provider=BlobProvider.AZURE,
        endpoint="http://127.0.0.1:1/a",
        access_key="a",
        secret_key=_WRONG_KEY,
        timeout=timedelta(seconds=2),
    )
    for ask in (
        lambda store: store.get(BlobId("x")),
        lambda store: store.now_skew(),
        lambda store: store.bucket_exists(),
        lambda store: store.delete_many([BlobId("x")]),
    ):
        with pytest.raises(StoreUnavailable, match=r"Azure at 127\.0\.0\.1:1"):
            ask(open_blob_store(settings, "b"))
    with pytest.raises(StoreUnavailable, match=r"Azure at 127\.0\.0\.1:1"):
        await AsyncBlobStore(settings, "b").get(BlobId("x"))
