"""A copy of a deleted blob that is referred to is never forgotten before its blob is there, however
long its time is over.
"""

from dataclasses import replace
from datetime import timedelta

import pytest

from mailslice.duties.blob_gc.trash import Trash
from mailslice.model import crash
from mailslice.model.errors import GateFailed
from mailslice.model.mail import BlobId
from mailslice.stores import open_stores
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.session import CassandraSession

HOURS = timedelta(hours=1)
LATER = timedelta(days=8)
"""The copies of before are over by then: they are kept for a week."""


class Died(Exception):
    """The run ended there."""


def collect_and_die(heap, monkeypatch, point):
    """A run that deletes what is due, and comes no further than that point."""

    def end(name):
        if name == point:
            raise Died

    monkeypatch.setattr(crash, "point", end)
    with pytest.raises(Died):
        heap.collect(2 * HOURS)


@pytest.fixture
def deleted(heap, monkeypatch):
    """(heap, a blob that is referred to since it was deleted, one that is not).

    The run that deleted both did not look again.
    """
    missed, orphan = heap.blob(), heap.blob()
    heap.collect()
    with monkeypatch.context() as patch:
        collect_and_die(heap, patch, "apply:after-deletes")
    assert (heap.keys(), heap.kept()) == (set(), {missed, orphan})
    return heap, missed, orphan


def refuse_copies_of(monkeypatch, key):
    """As an S3 that is full answers."""
    copies = S3BlobStore.copies

    def some(self, source, wanted):
        refused = {world: "S3 is full" for world in wanted if world.endswith(key)}
        return {
            **copies(
                self, source, {world: to for world, to in wanted.items() if world not in refused}
            ),
            **refused,
        }

    monkeypatch.setattr(S3BlobStore, "copies", some)


def test_a_copy_that_cannot_be_put_back_is_kept_until_it_can(deleted, monkeypatch):
    heap, missed, _ = deleted
    heap.row(missed, missed)
    with monkeypatch.context() as patch:
        refuse_copies_of(patch, missed)
        request = heap.request()
        applied = heap.steps(request, "plan", "check", "apply", at=LATER)
        assert (applied["restored"], applied["notRestored"], applied["expiredCopies"]) == (
            0,
            [f"{missed}: S3 is full"],
            1,
        )
        with pytest.raises(GateFailed, match="Every deleted blob that is referred to was put back"):
            heap.steps(request, "verify", at=LATER)
        report = heap.steps(request, "report", at=LATER)
        assert (report["status"], report["errorCount"], heap.kept()) == ("failed", 1, {missed})
    report = heap.collect(LATER + HOURS)
    assert (report["status"], report["restored"], heap.keys()) == ("done", 1, {missed})
    assert heap.stores.blobs.get(missed) == b"content"


def test_a_reference_that_came_since_the_plan_is_seen_before_its_copy_is_forgotten(deleted):
    heap, missed, _ = deleted
    request = heap.request()
    heap.steps(request, "plan", "check", at=LATER)
    heap.row(missed, missed)
    report = heap.steps(request, "apply", "verify", "report", at=LATER)
    assert (report["status"], report["restored"], report["expiredCopies"]) == ("done", 1, 2)
    assert (heap.keys(), heap.kept()) == ({missed}, set())


def test_an_inventory_of_before_the_deletes_hides_nothing_that_is_missed(
    heap, tmp_path, monkeypatch
):
    missed, present = heap.blob(), heap.blob()
    lines = [
        f'"{heap.settings.s3.bucket}","{blob.key}","{blob.size}",'
        f'"{blob.modified.isoformat().replace("+00:00", "Z")}"'
        for blob in heap.stores.blobs.list()
    ]
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    heap.collect()
    with monkeypatch.context() as patch:
        collect_and_die(heap, patch, "apply:after-deletes")
    heap.row(missed, present)
    heap.blob(present, b"saved again")
    request = heap.request(inventory=str(tmp_path))
    assert heap.steps(request, "plan", at=LATER)["restores"] == 1
    report = heap.steps(request, "check", "apply", "verify", "report", at=LATER)
    assert (report["status"], report["restored"], heap.keys()) == ("done", 1, {missed, present})
    assert heap.stores.blobs.get(present) == b"saved again"


@pytest.mark.parametrize(("grace", "waited"), [("10m", 70.0), ("30s", 30.0)])
def test_a_run_that_deleted_waits_for_inserts_under_way_and_no_longer_than_its_grace(
    heap, monkeypatch, grace, waited
):
    heap.params["grace"] = grace
    slept = []
    heap = heap.using(sleep=slept.append)
    monkeypatch.setattr(CassandraSession, "longest_statement", timedelta(seconds=70))
    heap.blob()
    heap.collect()
    assert slept == []
    assert (heap.collect(2 * HOURS)["gcedBlobCount"], slept) == (1, [waited])


def test_a_run_whose_blobs_are_all_referred_to_by_now_does_not_wait(heap, monkeypatch):
    slept = []
    heap = heap.using(sleep=slept.append)
    monkeypatch.setattr(CassandraSession, "longest_statement", timedelta(seconds=70))
    key = heap.blob()
    heap.collect()
    request = heap.request()
    heap.steps(request, "plan", "check", at=2 * HOURS)
    heap.message(key, key)
    assert heap.steps(request, "apply", at=2 * HOURS)["skippedBy"] == {"referred to again": 1}
    assert slept == []


@pytest.fixture
def neighbour(heap, make_fresh):
    """Another deployment, another James', that shares the own bucket."""
    absent = "enqueuedMailsV3,mailRepositoryContentV2,messageV3,attachmentV2"
    own = {"MAILSLICE_OWN_BUCKET": heap.settings.own.bucket}
    fresh = make_fresh().but(**own, MAILSLICE_GC_ABSENT_SOURCES=absent)
    with open_stores(fresh.settings) as stores:
        stores.tables.create()
        stores.blobs.ensure_bucket()
        yield replace(heap, settings=fresh.settings, stores=stores)


def test_copies_of_another_deployment_in_the_same_own_bucket_are_left_to_it(deleted, neighbour):
    """Here nothing refers to them."""
    heap, missed, orphan = deleted
    heap.row(missed, missed)
    report = neighbour.collect(LATER)
    assert (report["status"], report["expiredCopies"]) == ("nothing to do", 0)
    assert heap.kept() == {missed, orphan}
    report = heap.collect(LATER)
    assert (report["status"], report["restored"], report["expiredCopies"]) == ("done", 1, 2)
    assert (heap.keys(), heap.kept()) == ({missed}, set())


def test_copies_that_an_earlier_version_has_kept_are_put_back_and_forgotten_all_the_same(heap):
    """Their keys name no bucket."""
    missed = heap.blob()
    heap.row(missed, missed)
    for key in (missed, "3e9a1e3c-4b3b-4a53-8a63-0d8d2f0a6a11"):
        heap.stores.own_blobs.put(BlobId(f"kept/20261101T000000Z/r1/{key}"), b"content")
    heap.stores.blobs.delete_many([BlobId(missed)])
    report = heap.collect()
    assert (report["status"], report["restored"], report["expiredCopies"]) == ("done", 1, 2)
    assert (heap.keys(), heap.kept()) == ({missed}, set())


def test_copies_are_put_back_by_run_and_by_key_and_a_dry_run_says_the_same(deleted):
    heap, missed, orphan = deleted
    with Trash(heap.settings) as copies:
        (run,) = {copy.run for copy in copies.of_run(None)}
        of_run = list(copies.of_run(run))
        assert {copy.key for copy in of_run} == {missed, orphan}
        assert list(copies.of_run("another")) == []
        restored = {missed: "restored", orphan: "restored"}
        assert (copies.restore(of_run, dry_run=True), heap.keys()) == (restored, set())
        by_key = copies.of_keys([missed])
        assert copies.restore(by_key.values()) == {missed: "restored"}
        assert copies.restore(of_run) == {missed: "present", orphan: "restored"}
    assert heap.keys() == {missed, orphan}
