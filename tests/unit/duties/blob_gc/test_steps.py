"""The five steps over buckets in memory: what a run counts, records for a retry, and restores."""

import json
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from types import SimpleNamespace

import pytest

from mailslice.duties.blob_gc import apply, planner
from mailslice.duties.blob_gc.duty import DUTY
from mailslice.duties.blob_gc.orphans import GROUP_ROWS
from mailslice.duties.blob_gc.params import Params
from mailslice.duties.blob_gc.trash import Trashed
from mailslice.maintenance import runner
from mailslice.maintenance.artifacts import FILES
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model import crash
from mailslice.model.errors import ClockSkew, GateFailed
from mailslice.model.settings import Settings
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.blobs.store import StoredBlob
from mailslice.stores.own.runs import RunRow
from tests.unit.duties.judging import IN_PROCESS, NOW, Locks, refused_plainly, run_of

HOURS = timedelta(hours=1)
ALL = ("plan", "check", "apply", "verify", "report")


class Died(Exception):
    """The step ended there."""


class Buckets(dict):
    """S3 in memory: bucket -> key -> object."""

    def install(self, patch):
        for name in ("heads", "copies", "delete_many", "_pages"):
            patch.setattr(S3BlobStore, name, self._of(name))
        patch.setattr(S3BlobStore, "bucket_exists", lambda blobs: blobs.bucket in self)
        patch.setattr(S3BlobStore, "ensure_bucket", lambda blobs: self.setdefault(blobs.bucket, {}))
        patch.setattr(S3BlobStore, "now_skew", lambda *_: timedelta(0))

    def _of(self, name):
        method = getattr(self, name)
        return lambda blobs, *given: method(blobs.bucket, *given)

    def heads(self, bucket, keys):
        return {key: self[bucket].get(key) for key in keys}

    def copies(self, bucket, source, wanted):
        there = {key: to for key, to in wanted.items() if key in self[source]}
        now = datetime.now(UTC)  # as S3, which keeps the metadata and not the time
        self[bucket] |= {to: replace(self[source][key], modified=now) for key, to in there.items()}
        return {key: "the object is not there" for key in wanted if key not in there}

    def delete_many(self, bucket, keys):
        for key in keys:
            self[bucket].pop(key, None)
        return {}

    def _pages(self, bucket, low="", high="", limit=1000):
        keys = sorted(key for key in self[bucket] if key >= low and (not high or key < high))
        rows = [StoredBlob(key, self[bucket][key].size, self[bucket][key].modified) for key in keys]
        yield rows[:limit], len(rows) > limit


@dataclass
class References:
    """A source whose ids a test writes down."""

    ids: set = field(default_factory=set)
    name: str = "messageV3"
    parts: int = 1
    holes: int = 0

    def scan(self, _settings, parts):
        for part in parts:
            yield part, len(self.ids), sorted(self.ids)


class Heap:
    """One deployment and the steps of its collector."""

    def __init__(self, folder):
        self.folder, self.settings = folder, Settings()
        self.buckets = Buckets({self.settings.s3.bucket: {}, self.settings.own.bucket: {}})
        self.source = References()
        self.sizes = []
        runs = SimpleNamespace(list=lambda *_: [], newest=lambda _: [self.sizes])
        self.stores = SimpleNamespace(
            own=(own := SimpleNamespace(locks=Locks(), runs=runs)),
            records=own,
            existing_runs=lambda: runs,
            cassandra=SimpleNamespace(longest_statement=timedelta(0)),
        )
        self.params = {"grace": "10m", "delete_after": "1h", "max_share": 1}

    def blob(self):
        key = str(uuid.uuid4())
        self.buckets[self.settings.s3.bucket][key] = StoredBlob(key, 7, NOW - HOURS)
        return key

    def keys(self):
        return set(self.buckets[self.settings.s3.bucket])

    def kept(self):
        return {Trashed.of(key, 0).key for key in self.buckets[self.settings.own.bucket]}

    def take(self, *steps, at=timedelta(0), name="r-1", **params):
        summary = {}
        for step in steps:
            run = run_of(
                self.folder,
                "blob_gc",
                Params.parse({**self.params, **params}),
                NO_QUEUE,
                lambda: NOW + at,
                settings=self.settings,
                stores=self.stores,
                name=name,
                engine=IN_PROCESS,
                evaluator=refused_plainly,
            )
            summary = runner.step_of(DUTY, step)(run)
            run.folder.write_json(FILES[step], summary)
        return summary

    def file(self, step, name="r-1"):
        return run_of(self.folder, "blob_gc", queue=NO_QUEUE, name=name).folder.read_json(step)


@pytest.fixture
def heap(tmp_path, monkeypatch):
    heap = Heap(tmp_path)
    heap.buckets.install(monkeypatch)
    for module in (planner, apply):
        monkeypatch.setattr(module, "sources_of", lambda _: ([heap.source], ["enqueuedMailsV3"]))
    monkeypatch.setattr(planner, "unread_columns", lambda *_: ["avatars.blobid"])
    monkeypatch.setattr(planner, "with_rows", lambda *_: [])
    return heap


@pytest.fixture
def due(heap, monkeypatch):
    """(heap, three orphans that may go in r-2, which is planned and checked), two a request."""
    monkeypatch.setitem(GROUP_ROWS, "delete", 2)
    orphans = sorted(heap.blob() for _ in range(3))
    heap.take(*ALL)
    heap.take("plan", "check", at=2 * HOURS, name="r-2")
    return heap, orphans


def die_at(monkeypatch, point, times=1):
    """End the step when it comes to that point for that number of times."""
    left = [None] * times

    def point_of(name):
        if name == point:
            left.pop()
            if not left:
                raise Died

    monkeypatch.setattr(crash, "point", point_of)


def test_two_runs_delete_what_nothing_refers_to(heap):
    orphan, stays = heap.blob(), heap.blob()
    heap.source.ids.add(stays)
    first = heap.take(*ALL)
    assert (first["status"], first["candidates"], first["gcedBlobCount"]) == ("done", 1, 0)
    assert (first["orphans"], first["orphanBytes"], first["blobCount"], first["references"]) == (
        1,
        7,
        2,
        1,
    )
    assert first["unreferenced"] == {
        **dict.fromkeys(("unknown", "doubtful", "active", "young"), 0),
        "orphan": 1,
    }
    assert first["samples"]["waiting"][0]["key"] == orphan
    assert first["byAge"] == {"under 1 day": {"blobs": 1, "bytes": 7}}
    assert (first["absentSources"], first["unreadColumns"]) == (
        ["enqueuedMailsV3"],
        ["avatars.blobid"],
    )
    assert first["listing"] == {"inventory": None, "wanted": 1, "read": 1, "twice": 0, "holes": 0}
    second = heap.take(*ALL, at=2 * HOURS, name="r-2")
    assert (second["status"], second["gcedBlobCount"], second["errorCount"]) == ("done", 1, 0)
    assert (second["candidatesOf"], second["bytesDeleted"], second["bytes"]) == ("r-1", 7, 7)
    assert (heap.keys(), heap.kept()) == ({stays}, {orphan})
    assert second["message"].startswith(
        "1 blobs deleted (7 bytes); kept until 2026-11-29T14:00:00Z"
    )
    assert second["sources"][0]["before"] == 1
    assert not {"decided", "groups", "copiesExpire"} & second.keys()
    assert heap.take(*ALL, at=3 * HOURS, name="r-3")["status"] == "nothing to do"


def test_a_second_try_counts_what_the_first_one_did_and_makes_no_copy_twice(due, monkeypatch):
    heap, orphans = due
    with monkeypatch.context() as patch:
        die_at(patch, "apply:inside-deletes", times=2)
        with pytest.raises(Died):
            heap.take("apply", at=2 * HOURS, name="r-2")
    died = heap.file("progress.json", "r-2")
    assert (died["applied"], died["remaining"], len(died["groups"])) == (2, 1, 1)
    report = heap.take("apply", "verify", "report", at=3 * HOURS, name="r-2")
    assert (report["planned"], report["gcedBlobCount"], report["skipped"]) == (3, 3, 0)
    assert (report["bytesDeleted"], report["keptUntil"]) == (21, "2026-11-29T14:00:00Z")
    assert (heap.keys(), heap.kept()) == (set(), set(orphans))
    assert len(heap.buckets[heap.settings.own.bucket]) == 3


def test_a_second_try_counts_what_the_first_one_put_back(due, monkeypatch):
    heap, (missed, *_) = due
    heap.take("apply", "verify", "report", at=2 * HOURS, name="r-2")
    heap.source.ids.add(missed)
    heap.take("plan", "check", at=3 * HOURS, name="r-3")
    with monkeypatch.context() as patch:
        die_at(patch, "apply:after-restores")
        with pytest.raises(Died):
            heap.take("apply", at=3 * HOURS, name="r-3")
    report = heap.take("apply", "verify", "report", at=3 * HOURS, name="r-3")
    assert (report["restored"], heap.keys()) == (1, {missed})
    assert "1 put back, as they are referred to" in report["message"]


@pytest.mark.parametrize("in_time", [True, False])
def test_without_copies_a_second_try_names_what_the_first_one_deleted_and_is_referred_to(
    heap, monkeypatch, in_time
):
    missed, _ = heap.blob(), heap.blob()
    heap.take(*ALL)
    heap.take("plan", "check", at=2 * HOURS, name="r-2", keep="0s")
    with monkeypatch.context() as patch:
        die_at(patch, "apply:inside-deletes")
        with pytest.raises(Died):
            heap.take("apply", at=2 * HOURS, name="r-2", keep="0s")
    heap.source.ids.add(missed)
    monkeypatch.setattr(Run, "out_of_time", lambda _: not in_time)
    applied = heap.take("apply", at=2 * HOURS, name="r-2", keep="0s")
    assert applied["notRestored"] == [f"{missed}: referred to again, and no copy was kept"]
    report = heap.take("report", at=2 * HOURS, name="r-2", keep="0s")
    assert (report["status"], report["errorCount"]) == ("failed", 1)


@pytest.mark.parametrize("rest", ["stays", "goes meanwhile"])
def test_a_run_that_is_out_of_time_leaves_the_rest(due, monkeypatch, rest):
    heap, _ = due
    monkeypatch.setattr(Run, "out_of_time", lambda _: len(heap.keys()) < 3)
    heap.take("apply", at=2 * HOURS, name="r-2")
    (left,) = heap.keys()
    if rest == "goes meanwhile":
        del heap.buckets[heap.settings.s3.bucket][left]
    report = heap.take("verify", "report", at=2 * HOURS, name="r-2")
    assert (report["gcedBlobCount"], report["left"], report["skipped"]) == (2, 1, 0)
    assert "1 left to the next run" in report["message"]


def test_rounds_grow_while_they_are_short_and_shrink_before_a_lock_can_be_lost():
    assert [apply.next_round(8, seconds) for seconds in (0.1, 3.9, 4, 8, 8.1, 60)] == [
        *(16, 16, 8, 8, 4, 4),
    ]
    assert apply.next_round(1, 60) == 1


def test_a_reference_that_comes_before_or_among_the_deletes_keeps_its_blob(due, monkeypatch):
    heap, (early, late, orphan) = due
    heap.source.ids.add(early)
    monkeypatch.setattr(
        crash, "point", lambda name: heap.source.ids.add(late) if "inside" in name else None
    )
    report = heap.take("apply", "verify", "report", at=2 * HOURS, name="r-2")
    assert (report["gcedBlobCount"], report["skippedBy"], report["restored"]) == (
        2,
        {"referred to again": 1},
        1,
    )
    assert (heap.keys(), heap.kept()) == ({early, late}, {late, orphan})


def test_a_copy_that_is_missed_goes_back_and_verify_asks_for_it(due, monkeypatch):
    heap, (missed, *_) = due
    heap.take("apply", "verify", "report", at=2 * HOURS, name="r-2")
    heap.source.ids.add(missed)
    assert heap.take("plan", "check", at=3 * HOURS, name="r-3")["planned"] == 0
    assert heap.file("plan.json", "r-3")["restores"] == 1
    with monkeypatch.context() as patch:
        patch.setattr(S3BlobStore, "copies", lambda *_: {})
        assert heap.take("apply", at=3 * HOURS, name="r-3")["restored"] == 1
        with pytest.raises(GateFailed, match="referred_to_and_missing: 1"):
            heap.take("verify", at=3 * HOURS, name="r-3")
    report = heap.take("apply", "verify", "report", at=3 * HOURS, name="r-3")
    assert (report["status"], report["restored"], heap.keys()) == ("done", 2, {missed})


def test_deletes_that_fail_are_named_and_the_run_has_failed(due, monkeypatch):
    heap, orphans = due
    monkeypatch.setattr(S3BlobStore, "delete_many", lambda _, keys: dict.fromkeys(keys, "denied"))
    report = heap.take("apply", "verify", "report", at=2 * HOURS, name="r-2")
    assert (report["status"], report["failed"], report["errorCount"]) == ("failed", 3, 3)
    assert report["failures"] == [f"{key}: denied" for key in orphans]
    assert heap.keys() == set(orphans)


def many_due(heap, count):
    """As many orphans in one group; they may go in r-2, which is planned and checked."""
    for _ in range(count):
        heap.blob()
    heap.take(*ALL)
    heap.take("plan", "check", at=2 * HOURS, name="r-2")


def test_failures_that_are_not_named_are_counted(heap, monkeypatch):
    many_due(heap, 25)
    monkeypatch.setattr(S3BlobStore, "delete_many", lambda _, keys: dict.fromkeys(keys, "denied"))
    report = heap.take("apply", "verify", "report", at=2 * HOURS, name="r-2")
    assert (report["failed"], report["left"], len(report["failures"])) == (25, 0, 20)


def test_a_count_is_never_saved_without_its_group(heap, monkeypatch):
    many_due(heap, 120)  # progress is saved every hundred
    done = Progress.done

    def die_after(self, *given, count=1):
        done(self, *given, count=count)
        if count:
            raise Died

    monkeypatch.setattr(Progress, "done", die_after)
    with pytest.raises(Died):
        heap.take("apply", at=2 * HOURS, name="r-2")
    died = heap.file("progress.json", "r-2")
    assert (died["applied"], sum(one["deleted"] for one in died["groups"].values())) == (120, 120)


def test_a_blob_that_is_there_although_it_was_deleted_fails_verify(due, monkeypatch):
    heap, _ = due
    monkeypatch.setattr(S3BlobStore, "delete_many", lambda *_: {})
    assert heap.take("apply", at=2 * HOURS, name="r-2")["applied"] == 3
    with pytest.raises(GateFailed, match="planned_still_there: 3"):
        heap.take("verify", at=2 * HOURS, name="r-2")


@pytest.mark.parametrize("step", ["plan", "apply"])
def test_each_step_that_goes_by_s3s_times_compares_its_clock(due, monkeypatch, step):
    heap, orphans = due
    monkeypatch.setattr(S3BlobStore, "now_skew", lambda *_: timedelta(minutes=3))
    with pytest.raises(ClockSkew, match="180 s; allowed are 150 s"):
        heap.take(step, at=2 * HOURS, name="r-2")
    assert heap.keys() == set(orphans)


def test_a_plan_that_is_made_again_keeps_the_files_of_its_own_candidates(heap):
    orphan = heap.blob()
    heap.take(*ALL)
    heap.take(*ALL, at=HOURS / 2)
    report = heap.take(*ALL, at=HOURS + HOURS / 4, name="r-2")
    assert (report["gcedBlobCount"], report["candidatesOf"], heap.kept()) == (1, "r-1", {orphan})


@pytest.mark.parametrize("damage", ["note", "file"])
def test_candidates_that_were_changed_or_lost_wait_anew(heap, damage):
    heap.blob()
    heap.take(*ALL)
    files = run_of(heap.folder, "blob_gc", queue=NO_QUEUE).folder
    if damage == "file":
        (file,) = files.artifacts.files(files.file("plan"))
        files.artifacts.remove(file)
    else:
        note = f"{files.name.rpartition('/')[0]}/candidates.json"
        text = files.artifacts.read(note).decode()
        files.artifacts.write(note, text.replace("2026-11-22T", "2026-11-20T").encode())
    report = heap.take(*ALL, at=2 * HOURS, name="r-2")
    assert (report["gcedBlobCount"], report["candidates"], report["candidatesOf"]) == (0, 1, None)
    assert "forgotten and wait anew" in heap.file("plan.json", "r-2")["message"]
    assert heap.take(*ALL, at=4 * HOURS, name="r-3")["gcedBlobCount"] == 1


@pytest.mark.parametrize("edited", [False, True])
def test_after_an_upgrade_candidates_wait_anew_and_sources_are_remembered(heap, edited):
    """The note and its digest as versions before the runner wrote them."""
    _, lost = heap.blob(), heap.blob()
    heap.source.ids.add(lost)
    heap.take(*ALL)
    heap.source.ids.clear()
    folder = run_of(heap.folder, "blob_gc", queue=NO_QUEUE).folder
    note = f"{folder.name.rpartition('/')[0]}/candidates.json"
    value = {
        "run": "r-1",
        "recorded": "2026-11-22T12:00:00Z",
        "groups": [["candidate-1.parquet", 0, 1, "1-1-1"]],
        "spared": [],
        "sources": {"messageV3": 1},
    }
    digest = sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    value["recorded"] = "2026-11-20T12:00:00Z" if edited else value["recorded"]
    folder.artifacts.write(note, json.dumps({**value, "digest": digest}).encode())
    heap.take("plan", at=2 * HOURS, name="r-2")
    assert (
        "the note on the candidates of run r-1 was changed, or an earlier version of mailslice "
        "wrote it: they are forgotten and wait anew"
    ) in heap.file("plan.json", "r-2")["message"]
    with pytest.raises(GateFailed, match=r"lost_share: 1"):
        heap.take("check", at=2 * HOURS, name="r-2")
    heap.source.ids.add(lost)
    report = heap.take(*ALL, at=2 * HOURS, name="r-2")
    assert (report["gcedBlobCount"], report["candidates"], report["candidatesOf"]) == (0, 1, None)
    assert heap.take(*ALL, at=4 * HOURS, name="r-3")["gcedBlobCount"] == 1
    assert heap.keys() == {lost}


def test_a_view_without_its_live_mails_stops_the_run_until_a_size_shows_that_they_went(heap):
    orphan = heap.blob()
    heap.source.name = "enqueuedMailsV4"
    report = json.dumps({"status": "done", "live": 7})
    live = RunRow("r", "queue_size", "spool", NOW - HOURS, "done", report)
    heap.sizes.append(live)
    assert heap.take("plan")["liveMails"] == 7
    with pytest.raises(GateFailed, match="view_references: 0"):
        heap.take("check")
    heap.sizes.insert(0, replace(live, started=NOW, report=report.replace("7", "0")))
    assert heap.take(*ALL)["candidates"] == 1
    heap.sizes[:] = [live]
    report = heap.take(*ALL, at=2 * HOURS, name="r-2", max_shrink=1)
    assert (report["gcedBlobCount"], report["liveMails"], heap.kept()) == (1, 7, {orphan})


def test_copies_that_are_over_are_forgotten_once_nothing_refers_to_them(due, monkeypatch):
    heap, (missed, *rest) = due
    heap.take("apply", "verify", "report", at=2 * HOURS, name="r-2")
    later = timedelta(days=8)
    heap.take("plan", "check", at=later, name="r-3")
    heap.source.ids.add(missed)
    with monkeypatch.context() as patch:
        patch.setattr(S3BlobStore, "copies", lambda _, __, wanted: dict.fromkeys(wanted, "full"))
        applied = heap.take("apply", at=later, name="r-3")
        assert (applied["restored"], applied["expiredCopies"]) == (0, len(rest))
        assert applied["notRestored"] == [f"{missed}: full"]
        with pytest.raises(GateFailed, match="referred_to_and_missing: 1"):
            heap.take("verify", at=later, name="r-3")
        report = heap.take("report", at=later, name="r-3")
        assert (report["status"], report["errorCount"], heap.kept()) == ("failed", 1, {missed})
    report = heap.take(*ALL, at=later + HOURS, name="r-4")
    assert (report["restored"], report["expiredCopies"], heap.keys()) == (1, 1, {missed})


def test_every_blob_that_could_not_be_put_back_counts_and_is_told_first(heap, monkeypatch):
    missed, over = [heap.blob() for _ in range(apply.NAMED + 2)], heap.blob()
    heap.take(*ALL)
    assert heap.take(*ALL, at=2 * HOURS, name="r-2")["gcedBlobCount"] == len(missed) + 1
    later = timedelta(days=8)
    heap.take("plan", "check", at=later, name="r-3")
    heap.source.ids.update(missed)
    monkeypatch.setattr(S3BlobStore, "copies", lambda _, __, wanted: dict.fromkeys(wanted, "full"))
    monkeypatch.setattr(S3BlobStore, "delete_many", lambda _, keys: dict.fromkeys(keys, "no"))
    applied = heap.take("apply", at=later, name="r-3")
    assert (len(applied["notRestored"]), applied["copiesNotDeleted"]) == (apply.NAMED, 1)
    report = heap.take("report", at=later, name="r-3")
    assert (report["status"], report["errorCount"]) == ("failed", len(missed) + 1)
    assert report["message"].startswith(f"{len(missed)} deleted blobs are referred to and could ")
    assert heap.kept() == {*missed, over}
