"""Verify asks S3 about what the plan lists, whatever apply says of it.

Here S3's client says yes and does no.
"""

from datetime import timedelta

import pytest

from mailslice.duties.blob_gc import orphans
from mailslice.maintenance.run import Run
from mailslice.model.errors import GateFailed
from mailslice.stores.blobs.s3_store import S3BlobStore

HOURS = timedelta(hours=1)


@pytest.fixture
def due(heap):
    """Two candidates that may go, planned and checked: (heap, request, the two keys)."""
    keys = {heap.blob(), heap.blob()}
    heap.collect()
    request = heap.request()
    assert heap.steps(request, "plan", "check", at=2 * HOURS)["planned"] == 2
    return heap, request, keys


def lie(monkeypatch, name, answer):
    monkeypatch.setattr(S3BlobStore, name, answer)


def test_a_blob_that_is_there_although_apply_deleted_it_fails(due, monkeypatch):
    heap, request, keys = due
    lie(monkeypatch, "delete_many", lambda *_: {})
    assert heap.steps(request, "apply", at=2 * HOURS)["applied"] == 2
    assert heap.keys() == keys
    with pytest.raises(GateFailed, match="No planned blob is stored as it was listed"):
        heap.steps(request, "verify", at=2 * HOURS)


@pytest.mark.parametrize("said", ["deleted", "failed"])
def test_a_blob_without_its_copy_fails_whether_apply_says_that_it_went_or_not(
    due, monkeypatch, said
):
    heap, request, _ = due
    delete = S3BlobStore.delete_many

    def deleted(self, keys):
        problems = delete(self, keys)
        return problems if said == "deleted" else dict.fromkeys(keys, "no answer")

    lie(monkeypatch, "copies", lambda *_: {})
    lie(monkeypatch, "delete_many", deleted)
    applied = heap.steps(request, "apply", at=2 * HOURS)
    assert (applied["applied"], applied["failed"]) == ((2, 0) if said == "deleted" else (0, 2))
    assert (heap.keys(), heap.kept()) == (set(), set())
    with pytest.raises(GateFailed, match="Every deleted blob has its kept copy"):
        heap.steps(request, "verify", at=2 * HOURS)


@pytest.mark.parametrize(
    ("lies", "sentence"),
    [
        ("delete_many", "No planned blob is stored as it was listed"),
        ("copies", "Every deleted blob has its kept copy"),
        (None, ""),
    ],
)
def test_what_the_time_limit_left_excuses_none_of_what_was_reached(
    heap, monkeypatch, lies, sentence
):
    """Verify looks at a sample; the groups that apply did not reach are outside most of it."""
    monkeypatch.setitem(orphans.GROUP_ROWS, orphans.DELETE, 1)
    keys = {heap.blob() for _ in range(21)}
    heap.collect()
    request = heap.request()
    assert heap.steps(request, "plan", "check", at=2 * HOURS)["planned"] == 21
    turns = iter([False] * 10 + [True] * 11)
    monkeypatch.setattr(Run, "out_of_time", lambda _: next(turns, True))
    if lies:
        lie(monkeypatch, lies, lambda *_: {})
    applied = heap.steps(request, "apply", at=2 * HOURS)
    assert (applied["applied"], applied["remaining"]) == (10, 11)
    if not lies:
        assert len(heap.keys() & keys) == 11
        assert heap.steps(request, "verify", at=2 * HOURS)["success"]
        return
    with pytest.raises(GateFailed, match=sentence):
        heap.steps(request, "verify", at=2 * HOURS)


def test_one_that_is_referred_to_again_excuses_no_other_without_its_copy(due, monkeypatch):
    heap, request, keys = due
    again = min(keys)
    heap.message(again, again)
    lie(monkeypatch, "copies", lambda *_: {})
    applied = heap.steps(request, "apply", at=2 * HOURS)
    assert (applied["applied"], applied["skipped"], heap.keys()) == (1, 1, {again})
    with pytest.raises(GateFailed, match="Every deleted blob has its kept copy"):
        heap.steps(request, "verify", at=2 * HOURS)


def test_a_blob_that_was_to_be_put_back_and_is_not_there_fails(heap, monkeypatch):
    key = heap.blob()
    heap.twice()
    heap.message(key, key)
    request = heap.request()
    heap.steps(request, "plan", "check", at=3 * HOURS)
    lie(monkeypatch, "copies", lambda *_: {})
    applied = heap.steps(request, "apply", at=3 * HOURS)
    assert (applied["restored"], applied["notRestored"], heap.keys()) == (1, [], set())
    with pytest.raises(GateFailed, match="Every deleted blob that is referred to was put back"):
        heap.steps(request, "verify", at=3 * HOURS)
