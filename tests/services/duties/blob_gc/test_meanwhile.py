"""What others do while a run works.

References that appear, content that is written again, a second run, a broken source.
"""

import time
import uuid
from datetime import timedelta

import pytest

from mailslice.duties.blob_gc.duty import DUTY
from mailslice.maintenance.lock import LockHeld, locked
from mailslice.maintenance.plan import digest_of
from mailslice.model import crash
from mailslice.model.errors import GateFailed, StoreUnavailable
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.references import ReferenceColumns

HOURS = timedelta(hours=1)
MORE_POINTS = ("after-second-scan", "after-candidates", "inside-deletes")


@pytest.fixture
def due(heap):
    """Two candidates that may go, planned and checked: (heap, request, the two keys).

    S3 counts seconds. What is written again in the second of the first write is as it was listed.
    """
    keys = [heap.blob(), heap.blob()]
    written = time.monotonic()
    heap.collect()
    request = heap.request()
    assert heap.steps(request, "plan", "check", at=2 * HOURS)["planned"] == 2
    time.sleep(max(0, written + 1 - time.monotonic()))
    return heap, request, keys


def at_point(monkeypatch, name, act):
    """Do this once, when the run comes to that point."""
    waiting = [act]
    monkeypatch.setattr(
        crash, "point", lambda point: waiting.pop()() if point == name and waiting else None
    )


def test_a_blob_whose_reference_appears_between_plan_and_apply_is_kept(due):
    heap, request, (referred, orphan) = due
    heap.message(referred, "elsewhere")
    report = heap.steps(request, "apply", "verify", "report", at=2 * HOURS)
    assert (
        report["gcedBlobCount"],
        report["skippedBy"],
        report["restored"],
        report["errorCount"],
    ) == (1, {"referred to again": 1}, 0, 0)
    assert (heap.keys(), heap.kept()) == ({referred}, {orphan})
    heap.cql("TRUNCATE {}.messagev3")
    again = heap.collect(4 * HOURS, max_shrink=1)
    assert (again["gcedBlobCount"], again["candidates"]) == (0, 1), "it waits anew"


@pytest.mark.parametrize(
    "point",
    [
        "apply:after-copies",
        "apply:after-deletes",
        *(pytest.param(f"apply:{where}", marks=pytest.mark.soak) for where in MORE_POINTS),
    ],
)
def test_a_blob_whose_reference_appears_while_apply_works_is_put_back_in_the_same_run(
    due, monkeypatch, point
):
    heap, request, (referred, orphan) = due
    at_point(monkeypatch, point, lambda: heap.row(referred, referred))
    report = heap.steps(request, "apply", "verify", "report", at=2 * HOURS)
    assert (
        report["status"],
        report["gcedBlobCount"],
        report["restored"],
        report["errorCount"],
    ) == ("done", 2, 1, 0)
    assert heap.keys() == {referred}
    assert heap.stores.blobs.get(referred) == b"content"
    assert heap.kept() == {referred, orphan}


def test_without_copies_the_same_is_checked_and_what_came_too_late_fails_the_run_by_name(
    heap, monkeypatch
):
    heap.params["keep"] = "0s"
    spared, late, orphan = heap.blob(), heap.blob(), heap.blob()
    heap.collect()
    request = heap.request()
    heap.steps(request, "plan", "check", at=2 * HOURS)
    heap.message(spared, "x")
    at_point(monkeypatch, "apply:inside-deletes", lambda: heap.row(late, late))
    applied = heap.steps(request, "apply", at=2 * HOURS)
    assert (
        applied["applied"],
        applied["skippedBy"],
        applied["restored"],
        applied["keptUntil"],
    ) == (2, {"referred to again": 1}, 0, None)
    assert applied["notRestored"] == [f"{late}: referred to again, and no copy was kept"]
    with pytest.raises(GateFailed, match="Every deleted blob that is referred to was put back"):
        heap.steps(request, "verify", at=2 * HOURS)
    report = heap.steps(request, "report", at=2 * HOURS)
    assert (report["status"], report["gcedBlobCount"], report["errorCount"]) == ("failed", 2, 1)
    assert (heap.keys(), heap.kept()) == ({spared}, set()), (
        f"{late} and {orphan} had no reference when they went"
    )


def test_a_reference_that_appears_after_apply_is_served_by_the_next_run(due):
    heap, request, (referred, _) = due
    heap.steps(request, "apply", "verify", "report", at=2 * HOURS)
    heap.message("elsewhere", referred)
    report = heap.collect(3 * HOURS)
    assert (report["status"], report["restored"], report["orphans"]) == ("done", 1, 0)
    assert heap.keys() == {referred}


@pytest.mark.parametrize("point", ["apply:locked", "apply:after-copies"])
def test_a_blob_that_is_written_again_is_left_and_so_is_one_that_went(due, monkeypatch, point):
    heap, request, (written, gone) = due
    at_point(
        monkeypatch,
        point,
        lambda: (
            heap.blob(written, b"more content than before"),
            heap.stores.blobs.delete_many([gone]),
        ),
    )
    report = heap.steps(request, "apply", "verify", "report", at=2 * HOURS)
    deleted = int(
        point == "apply:after-copies"
    )  # gone, with a copy of this very run: as if this run had deleted it
    assert (report["gcedBlobCount"], report["errorCount"]) == (deleted, 0)
    assert report["skippedBy"] == {"changed since the listing": 1} | (
        {} if deleted else {"gone already": 1}
    )
    assert heap.stores.blobs.get(written) == b"more content than before"


def test_a_copy_that_cannot_be_made_keeps_its_blob(due, monkeypatch):
    heap, request, (broken, orphan) = due
    copies = S3BlobStore.copies

    def all_but_one(self, source, wanted):
        return {
            **copies(self, source, {key: to for key, to in wanted.items() if key != broken}),
            broken: "no",
        }

    monkeypatch.setattr(S3BlobStore, "copies", all_but_one)
    report = heap.steps(request, "apply", "verify", "report", at=2 * HOURS)
    assert (
        report["status"],
        report["gcedBlobCount"],
        report["errorCount"],
        report["failures"],
    ) == ("failed", 1, 1, [f"{broken}: no"])
    assert (heap.keys(), heap.kept()) == ({broken}, {orphan})
    monkeypatch.setattr(S3BlobStore, "copies", copies)
    assert heap.collect(3 * HOURS)["gcedBlobCount"] == 1, (
        "the next run tries it again, and it need not wait anew"
    )


def test_two_runs_at_once_the_second_is_refused(due, monkeypatch):
    heap, request, keys = due
    with locked(heap.stores.own.locks, "blob_gc", "another"):
        monkeypatch.setattr(DUTY, "lock_patience", timedelta(0))
        with pytest.raises(LockHeld, match="locked by run another"):
            heap.steps(request, "apply", at=2 * HOURS)
    assert heap.keys() == set(keys)


@pytest.mark.parametrize("step", ["plan", "apply", "look"])
def test_a_source_that_fails_in_one_range_stops_the_run(heap, monkeypatch, step):
    keys = {heap.blob(), heap.blob()}
    heap.message("a", "b")
    heap.collect()
    request, rows, scans = heap.request(), ReferenceColumns.rows, {"plan": 1, "apply": 2, "look": 3}
    seen = []

    def broken(self, session, ranges, in_flight=4):
        seen.append(self.table)
        for number, found in enumerate(rows(self, session, ranges, in_flight)):
            if self.table == "messagev3" and seen.count("messagev3") == scans[step] and number == 0:
                raise StoreUnavailable("a range could not be read")
            yield found

    monkeypatch.setattr(ReferenceColumns, "rows", broken)
    with pytest.raises(StoreUnavailable, match="could not be read"):
        heap.steps(request, "plan", "check", "apply", at=2 * HOURS)
    assert heap.keys() == (keys if step != "look" else set())
    monkeypatch.setattr(ReferenceColumns, "rows", rows)
    if step == "look":
        # Deleted, and not looked for since: the next run serves a reference that came meanwhile.
        heap.message("a", lost := min(keys))
        assert (heap.collect(3 * HOURS)["restored"], heap.keys()) == (1, {lost})


def test_a_range_that_was_not_read_is_not_an_empty_one(heap):
    key = heap.blob()
    heap.message("a", key)
    request = heap.request()
    heap.steps(request, "plan")
    plan = heap.folder(request).read_json("plan.json")
    (messages,) = [each for each in plan["decided"]["scans"] if each["source"] == "messageV3"]
    messages["parts"] += 1
    plan["planDigest"] = digest_of(plan["decided"])
    heap.folder(request).write_json("plan.json", plan)
    with pytest.raises(GateFailed, match="an unread one is not an empty one"):
        heap.steps(request, "check")


def test_ranges_that_do_not_tile_the_ring_fail_the_gate(heap, monkeypatch):
    from mailslice.duties.blob_gc import sources

    heap.blob()
    whole = sources.token_ranges
    monkeypatch.setattr(sources, "token_ranges", lambda session, least: whole(session, least)[:-1])
    with pytest.raises(GateFailed, match="token ranges of a source tile the ring"):
        heap.collect()


def test_a_kept_copy_is_no_reference_and_restored_ids_are(heap):
    key = heap.blob()
    heap.twice()
    again = heap.blob(key, b"the same id, written anew")
    report = heap.collect(3 * HOURS)
    assert (report["orphans"], report["restored"], report["candidates"]) == (1, 0, 1)
    assert heap.stores.blobs.get(again) == b"the same id, written anew"
    assert uuid.UUID(again)
