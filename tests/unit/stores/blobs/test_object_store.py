"""The content store of Azure and GCS, over obstore's stores in memory and on a disk."""

from __future__ import annotations

import tracemalloc
from functools import partial

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.exceptions import BaseError, PermissionDeniedError
from obstore.store import LocalStore, MemoryStore

from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.errors import BadSetting, SlowDown, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import BlobProvider, S3Settings, load_settings
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.factory import open_blob_store
from mailslice.stores.blobs.keys import escape_key, needs_boto3, service, unescape_key
from mailslice.stores.blobs.object_store import ObjectBlobStore, open_obstore, translated
from tests.contracts.blob_store import AWKWARD, Buckets, EscapedKeys

GCS = S3Settings(provider=BlobProvider.GCS)
AZURE = S3Settings(provider=BlobProvider.AZURE, endpoint="https://mails.blob.core.windows.net")


@pytest.fixture(params=["memory", "disk"])
def stores(request, tmp_path):
    """Bucket -> its store."""
    names = ("mails", "own-mails")
    if request.param == "memory":
        return {name: MemoryStore() for name in names}
    return {name: LocalStore(tmp_path / name, mkdir=True) for name in names}


class TestInMemoryAndOnADisk(EscapedKeys):
    @pytest.fixture
    def buckets(self, stores):
        return Buckets(
            partial(ObjectBlobStore, GCS, open_bucket=stores.__getitem__),
            partial(AsyncBlobStore, GCS, open_bucket=stores.__getitem__),
        )


@given(st.lists(st.sampled_from(["", ".", "..", "%", "a", "%2E", "é", "\n", "%%", "a.b"])))
def test_every_key_has_a_path_of_its_own_that_obstore_can_express(segments):
    key = "/".join(segments)
    path = escape_key(key)
    assert unescape_key(path) == key
    if key:
        assert not needs_boto3(path)


@pytest.mark.parametrize("key", AWKWARD)
def test_a_usual_key_is_its_own_path_and_no_other_is(key):
    assert escape_key(key) != key
    assert unescape_key(escape_key(key)) == key
    assert escape_key("1_628_Ck5SoRNWUpSR4X0/v7R5+=") == "1_628_Ck5SoRNWUpSR4X0/v7R5+="


def test_the_provider_is_a_setting():
    settings = load_settings(
        {
            "MAILSLICE_S3_PROVIDER": "azure",
            "MAILSLICE_S3_ENDPOINT": "https://mails.blob.core.windows.net",
        }
    ).s3
    assert settings == AZURE
    assert isinstance(open_blob_store(settings, "james"), ObjectBlobStore)
    assert not isinstance(open_blob_store(S3Settings(), "james"), ObjectBlobStore)
    assert [service(one) for one in (S3Settings(), AZURE, GCS)] == [
        "S3 at 127.0.0.1:9000",
        "Azure at mails.blob.core.windows.net",
        "GCS",
    ]
    with pytest.raises(BadSetting, match="MAILSLICE_S3_PROVIDER='swift'"):
        load_settings({"MAILSLICE_S3_PROVIDER": "swift"})


def test_artifacts_are_in_a_folder_where_there_is_no_s3(tmp_path):
    with pytest.raises(BadSetting, match="MAILSLICE_S3_PROVIDER=gcs allowed is a folder"):
        Artifacts("s3a://runs/x", GCS)
    assert Artifacts(str(tmp_path), GCS).bucket is None


def test_a_copy_holds_its_object_once():
    """In obstore's memory, which tracemalloc does not see; sixteen are under way at once."""
    stores, size = {name: MemoryStore() for name in ("mails", "own")}, 2**24
    obstore.put(stores["mails"], "key", bytes(size), use_multipart=False)
    blobs = ObjectBlobStore(GCS, "own", open_bucket=stores.__getitem__)
    tracemalloc.start()
    try:
        assert blobs.copies("mails", {BlobId("key"): BlobId("copy")}) == {}
        assert tracemalloc.get_traced_memory()[1] < size / 2
    finally:
        tracemalloc.stop()
    assert blobs.heads([BlobId("copy")])["copy"].size == size


class Failing:
    """obstore's functions; those that are named raise in turn."""

    def __init__(self, **errors):
        self._errors = errors

    def __getattr__(self, name):
        def ask(*args, **options):
            if errors := self._errors.get(name):
                raise errors.pop(0)
            return getattr(obstore, name)(*args, **options)

        return ask


def failing(monkeypatch, patience_s=60, **errors):
    monkeypatch.setattr("mailslice.stores.blobs.object_store.obstore", Failing(**errors))
    store = MemoryStore()
    paused = []
    blobs = ObjectBlobStore(
        GCS, "mails", open_bucket=lambda _: store, patience_s=patience_s, sleep=paused.append
    )
    return blobs, paused


class Generic(BaseError):
    """What obstore raises where it has no class of its own."""


BUSY = (
    "Error performing PUT in 3ms - Server returned non-2xx status code: 503 Service Unavailable: "
)


def test_a_store_that_is_too_busy_is_asked_again(monkeypatch):
    blobs, paused = failing(monkeypatch, put=[Generic(BUSY), Generic(BUSY)], head=[Generic(BUSY)])
    blobs.put(BlobId("a"), b"x")
    assert blobs.heads([BlobId("a")])["a"] is not None
    assert len(paused) == 3
    impatient, _ = failing(monkeypatch, patience_s=0, put=[Generic(BUSY)])
    with pytest.raises(SlowDown, match="GCS, bucket 'mails': Error performing PUT"):
        impatient.put(BlobId("a"), b"x")


def test_a_store_that_cannot_be_reached_does_not_answer():
    error = Generic(
        "Generic S3 error: Error performing HEAD http://s3:9000/mails/a in 231.4ms, after 2 "
        "retries, max_retries: 2, retry_timeout: 5s  - HTTP error: error sending request\n\n"
        "Debug source:\nhyper_util::client::legacy::Error(Connect, ConnectError(...))"
    )
    s3 = S3Settings(endpoint="http://s3:9000")
    said = str(translated(s3, "mails", error))
    assert said.startswith("S3 at s3:9000 does not answer, bucket 'mails': ")
    assert "hyper_util" not in said


def test_keys_that_cannot_be_deleted_are_said_and_stop_no_other(monkeypatch):
    errors = [Generic("409 Conflict: locked"), Generic("409 Conflict: locked")]
    blobs, _ = failing(monkeypatch, delete=errors)
    for key in ("a", "b", "c"):
        blobs.put(BlobId(key), b"x")
    failed = blobs.delete_many([BlobId(key) for key in ("a", "b", "c")])
    (why,) = failed.values()
    assert "409 Conflict: locked" in why
    assert {blob.key for blob in blobs.list()} == set(failed)


def test_a_store_that_deletes_nothing_is_away(monkeypatch):
    blobs, _ = failing(monkeypatch, delete=[Generic("no route to host") for _ in range(3)])
    with pytest.raises(StoreUnavailable, match="no route to host"):
        blobs.delete_many([BlobId("a"), BlobId("b")])


def test_credentials_that_are_refused_name_their_settings(monkeypatch):
    blobs, _ = failing(monkeypatch, list=[Generic("status code: 403 Forbidden: <?xml")])
    with pytest.raises(BadSetting, match="GCS refuses the key of MAILSLICE_S3_ACCESS_KEY"):
        next(blobs.list())


def test_a_clock_that_s3_refuses_is_no_wrong_key_and_may_be_right_soon():
    """The text is that of obstore for an answer of S3."""
    answer = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between"
    text = f"Error performing PUT http://s3:9000/mails/a in 6ms - 403 Forbidden: {answer}"
    error = translated(S3Settings(endpoint="http://s3:9000"), "mails", PermissionDeniedError(text))
    assert isinstance(error, StoreUnavailable)
    assert "clock" in str(error)
    assert "MAILSLICE_S3_SECRET_KEY" not in str(error)


@pytest.mark.parametrize(
    "changes",
    [
        {"provider": BlobProvider.AZURE, "access_key": "mails", "secret_key": "s3cret!"},
        {"provider": BlobProvider.GCS, "secret_key": "s3cret"},
        {"provider": BlobProvider.GCS, "secret_key": '{"private_key_id": "s3cret"}'},
        {
            "provider": BlobProvider.GCS,
            "secret_key": '{"client_email": "a", "private_key_id": "b", "private_key": '
            '"-----BEGIN PRIVATE KEY-----\\ns3cret\\n-----END PRIVATE KEY-----"}',
        },
    ],
)
async def test_a_key_that_is_none_is_refused_before_anything_is_asked(changes):
    settings = S3Settings(endpoint="https://mails.blob.core.windows.net", **changes)
    blobs = ObjectBlobStore(settings, "mails")
    for ask in (blobs.bucket_exists, lambda: next(blobs.list()), lambda: blobs.get(BlobId("a"))):
        with pytest.raises(BadSetting, match=r"refuses the key of .* MAILSLICE_S3_SECRET_KEY") as e:
            ask()
        assert "s3cret" not in str(e.value)
    with pytest.raises(BadSetting, match="MAILSLICE_S3_SECRET_KEY"):
        await AsyncBlobStore(settings, "mails").bucket_exists()


@pytest.mark.parametrize(
    ("key", "environ", "account"),
    [(None, None, "mails"), (None, "", "mails"), (None, "other", "other"), ("key", "other", "key")],
)
def test_the_account_is_that_of_settings_or_environment_else_of_the_endpoint(
    monkeypatch, key, environ, account
):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    if environ is not None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", environ)
    settings = AZURE.model_copy(update={"access_key": key})
    assert open_obstore(settings, "mails").config["account_name"] == account


def test_a_region_that_is_wrong_is_named():
    error = Generic("400 Bad Request: <Code>AuthorizationHeaderMalformed</Code>")
    refused = translated(S3Settings(), "mails", error)
    assert isinstance(refused, BadSetting)
    assert "MAILSLICE_S3_REGION='us-east-1'): AuthorizationHeaderMalformed" in str(refused)
    assert "REGION" not in str(translated(GCS, "mails", error))


def test_a_missing_bucket_is_not_created(monkeypatch):
    gone = [Generic("status code: 404 Not Found: <Code>NoSuchBucket</Code>") for _ in range(3)]
    blobs, _ = failing(monkeypatch, list=gone)
    with pytest.raises(BadSetting, match="GCS has no bucket 'mails': create it"):
        blobs.ensure_bucket()
    with pytest.raises(StoreUnavailable, match="there is no bucket 'mails'"):
        blobs.get(BlobId("gone"))
    with pytest.raises(StoreUnavailable, match="there is no bucket 'mails'"):
        blobs.exists(BlobId("gone"))
