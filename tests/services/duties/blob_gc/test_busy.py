"""S3 that is too busy for a while, and one that stays so."""

from datetime import timedelta

import pytest

from mailslice.duties.blob_gc.orphans import GROUP_ROWS
from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.errors import SlowDown as TooBusy
from mailslice.model.mail import BlobId
from mailslice.stores.blobs import factory
from mailslice.stores.blobs.s3_store import S3BlobStore
from tests.services.duties.blob_gc.slow_down import SlowDown

HOURS = timedelta(hours=1)


@pytest.fixture
def busy(heap):
    proxy = SlowDown(heap.settings.s3.endpoint)
    heap.settings = heap.settings.model_copy(
        update={"s3": heap.settings.s3.model_copy(update={"endpoint": proxy.endpoint})}
    )
    yield heap, proxy
    proxy.close()


@pytest.mark.parametrize(
    "method",
    ["HEAD", "POST", *(pytest.param(each, marks=pytest.mark.soak) for each in ("GET", "PUT"))],
)
def test_a_run_waits_while_s3_says_slow_down(busy, method):
    """GET lists, HEAD looks, PUT copies, POST deletes.

    Each is refused three times: boto3 itself asks twice.
    """
    heap, proxy = busy
    orphan = heap.blob()
    heap.collect()
    request = heap.request()
    if method == "GET":
        proxy.refuse("GET", 3)
    heap.steps(request, "plan", "check", at=2 * HOURS)
    proxy.refuse(method, 3)
    report = heap.steps(request, "apply", "verify", "report", at=2 * HOURS)
    assert (report["gcedBlobCount"], report["errorCount"]) == (1, 0)
    assert proxy.refused[method] >= 3
    assert (heap.keys(), heap.kept()) == (set(), {orphan})


def test_an_s3_that_stays_busy_ends_the_run_and_the_next_one_goes_on(busy, monkeypatch):
    heap, proxy = busy
    heap.blob()
    heap.collect()
    request = heap.request()
    heap.steps(request, "plan", "check", at=2 * HOURS)
    monkeypatch.setattr(factory, "PATIENCE_S", 0.5)
    proxy.refuse("POST", 10**6)
    with pytest.raises(StoreUnavailable, match="too busy"):
        heap.steps(request, "apply", at=2 * HOURS)
    assert len(heap.keys()) == 1
    proxy.refuse("POST", 0)
    report = heap.steps(request, "apply", "verify", "report", at=2 * HOURS)
    assert (report["gcedBlobCount"], report["status"]) == (1, "done")


def test_keys_that_s3_was_too_busy_for_are_deleted_again_and_others_are_said(heap, monkeypatch):
    keys = [BlobId(heap.blob()) for _ in range(4)]
    with S3BlobStore(
        heap.settings.s3, heap.settings.s3.bucket, patience_s=9, sleep=lambda _: None
    ) as blobs:
        whole = blobs.client.delete_objects
        asked = []

        def partly(**given):
            wanted = [each["Key"] for each in given["Delete"]["Objects"]]
            asked.append(len(wanted))
            if len(asked) < 3:
                wanted = [key for key in wanted if key != keys[3]]
                for key in wanted[1:]:
                    blobs.client.delete_object(Bucket=given["Bucket"], Key=key)
                denied = [{"Key": keys[3], "Code": "AccessDenied"}] if len(asked) == 1 else []
                return {"Errors": [{"Key": wanted[0], "Code": "SlowDown"}, *denied]}
            return whole(**given)

        monkeypatch.setattr(blobs.client, "delete_objects", partly)
        assert blobs.delete_many(keys) == {keys[3]: "S3 would not delete it: AccessDenied"}
        assert asked == [4, 1, 1]
    assert heap.keys() == {keys[3]}


def test_a_run_that_may_not_delete_ends_with_the_copies_of_its_first_request(heap, monkeypatch):
    """S3 answers a bulk delete without that right with 200 and a refusal of each key."""
    monkeypatch.setitem(GROUP_ROWS, "delete", 1)
    orphans = {heap.blob() for _ in range(3)}
    heap.collect()
    request = heap.request()
    heap.steps(request, "plan", "check", at=2 * HOURS)

    def refuse(**given):
        keys = [each["Key"] for each in given["Delete"]["Objects"]]
        return {"Errors": [{"Key": key, "Code": "AccessDenied"} for key in keys]}

    monkeypatch.setattr(heap.stores.blobs.client, "delete_objects", refuse)
    with pytest.raises(BadSetting, match="refuses the key of MAILSLICE_S3_ACCESS_KEY"):
        heap.steps(request, "apply", at=2 * HOURS)
    assert (heap.keys(), len(heap.kept())) == (orphans, 1)


def test_a_slow_down_that_never_ends_is_raised_as_what_it_is(busy):
    heap, proxy = busy
    proxy.refuse("HEAD", 10**6)
    with S3BlobStore(heap.settings.s3, heap.settings.s3.bucket) as blobs, pytest.raises(TooBusy):
        blobs.heads([BlobId("x")])
