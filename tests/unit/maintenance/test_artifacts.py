"""Run folders: paths, JSON, retention; on a folder. S3 has its test among the services."""

import os
import pickle
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from mailslice.duties.republish_lost.duty import MAX_AUDIT_AGE
from mailslice.maintenance.artifacts import Artifacts, RunFolder, iso, queue_folder
from mailslice.maintenance.metrics import Sample, exposition
from mailslice.maintenance.plan import OLDEST_PLAN
from mailslice.maintenance.retention import prune, prune_metrics, prune_sometimes
from mailslice.model.errors import BadSetting, PlanRefused, StoreUnavailable
from mailslice.model.settings import S3Settings, load_settings
from mailslice.stores.blobs import s3_store
from mailslice.stores.blobs.store import StoredBlob
from tests.contracts.artifacts import ArtifactsContract


class TestInAFolder(ArtifactsContract):
    @pytest.fixture
    def where(self, tmp_path):
        return lambda name: Artifacts(str(tmp_path / name), S3Settings())

    def test_links_to_folders_and_of_folders_are_followed(self, tmp_path, location):
        location.write("runs/f", b"x")
        Path(location.path("runs")).rename(tmp_path / "large disk")
        Path(location.path("runs")).symlink_to(tmp_path / "large disk")
        assert (location.files("runs"), location.folders("")) == (["runs/f"], ["runs"])


def test_a_path_below_a_current_folder_that_is_gone_is_a_bad_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(BadSetting, match="MAILSLICE_ARTIFACTS='runs': the current folder is gone"):
        Artifacts("runs", S3Settings())
    assert Artifacts(str(tmp_path), S3Settings()).path("") == str(tmp_path)
    assert Artifacts("s3a://bucket/x", S3Settings()).path("") == "bucket/x"


@pytest.fixture
def buckets(monkeypatch):
    """The keys of each bucket; what is deleted goes."""
    kept = {}

    class Bucket:
        def __init__(self, _settings, name):
            self.keys = kept.setdefault(name, set())

        def ensure_bucket(self):
            pass

        def put(self, key, _data):
            self.keys.add(key)

        def list(self, prefix):
            at = datetime(2020, 1, 1, tzinfo=UTC)
            return [StoredBlob(key, 1, at) for key in sorted(self.keys) if key.startswith(prefix)]

        def delete_many(self, keys):
            self.keys.difference_update(keys)

    monkeypatch.setattr(s3_store, "S3BlobStore", Bucket)
    return kept


@pytest.mark.parametrize("bucket", ["abc", "a-bucket-with-a-name-much-longer-than-any-folder"])
@pytest.mark.parametrize("below", ["//mailslice", "/mailslice", "///mailslice//"])
def test_slashes_around_a_prefix_are_none_of_it(buckets, bucket, below):
    """Its keys were those of the bucket, cut somewhere, and a folder of it was the bucket."""
    location = Artifacts(f"s3a://{bucket}{below}", S3Settings())
    assert location.path("runs") == f"{bucket}/mailslice/runs"
    location.write("runs/d/q/r1/plan.json", b"{}")
    buckets[bucket].add("of another")
    assert buckets[bucket] == {"mailslice/runs/d/q/r1/plan.json", "of another"}
    assert location.files("runs") == ["runs/d/q/r1/plan.json"]
    location.remove_folder("runs/d")
    assert buckets[bucket] == {"of another"}


def test_a_folder_goes_whole_though_another_process_removes_files_of_it(tmp_path, monkeypatch):
    unlink = os.unlink

    def raced(path, **folder):
        unlink(path, **folder)
        monkeypatch.undo()
        raise FileNotFoundError(path)

    location = Artifacts(str(tmp_path), S3Settings())
    for name in "abc":
        location.write(f"runs/{name}", b"{}")
    monkeypatch.setattr(os, "unlink", raced)
    location.remove_folder("runs")
    assert location.files("runs") == []
    location.remove_folder("runs")


def test_a_bucket_is_never_removed_as_a_folder(buckets):
    location = Artifacts("s3a://abc", S3Settings())
    location.write("runs/d", b"{}")
    with pytest.raises(BadSetting, match="bucket 'abc' is no folder: nothing was removed"):
        location.remove_folder("")
    assert buckets == {"abc": {"runs/d"}}


@pytest.fixture
def world(tmp_path):
    return Artifacts(str(tmp_path / "a"), S3Settings())


def test_json_comes_back_with_times_and_durations_as_text(world):
    folder = RunFolder(world, "queue_cleanup", "spool", "r1")
    folder.write_json(
        "x.json", {"at": datetime(2026, 11, 21, 2, 15, tzinfo=UTC), "grace": timedelta(minutes=15)}
    )
    assert folder.read_json("x.json") == {"at": "2026-11-21T02:15:00Z", "grace": "15m"}


def test_what_was_not_written_is_none(world):
    assert RunFolder(world, "d", "q", "r").read_json("plan.json") is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"decided": ', "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[1, 2]", r"holds '\[1, 2\]'"),
        (b"null", "holds 'None'"),
    ],
)
def test_a_file_that_was_edited_into_something_else_is_refused_by_its_name(world, data, words):
    folder = RunFolder(world, "d", "q", "r")
    world.write(folder.file("plan.json"), data)
    with pytest.raises(PlanRefused, match=rf"/runs/d/q/r/plan\.json {words}"):
        folder.read_json("plan.json")


def test_a_key_that_was_taken_out_is_refused_by_its_name_and_may_be_asked_for_all_the_same(world):
    folder = RunFolder(world, "d", "q", "r")
    folder.write_json("plan.json", {"planned": 1})
    for found in (
        folder.read_json("plan.json"),
        pickle.loads(pickle.dumps(folder.read_json("plan.json"))),
    ):
        assert (found["planned"], found.get("reads"), "reads" in found) == (1, None, False)
        with pytest.raises(PlanRefused, match=r"/runs/d/q/r/plan\.json has no 'reads' any more"):
            found["reads"]


@pytest.mark.parametrize("queue", ["..", ".", "a b", "päckchen", "a%2Fb"])
def test_a_queues_name_never_leaves_its_folder(queue):
    folder = queue_folder("queue_cleanup", queue)
    assert folder.startswith("runs/queue_cleanup/")
    assert "/" not in folder.removeprefix("runs/queue_cleanup/")
    assert folder.rpartition("/")[2] not in {".", "..", ""}


def test_old_runs_are_pruned_and_new_ones_stay(world):
    for run in ("old", "new"):
        folder = RunFolder(world, "d", "q", run)
        folder.write_json("report.json", {})
        if run != "new":
            os.utime(world.path(folder.file("report.json")), (0, 0))
    assert prune(world, queue_folder("d", "q"), datetime(2020, 1, 1, tzinfo=UTC)) == ["old"]
    assert world.folders("runs/d/q") == ["new"]


def test_of_a_run_that_says_that_it_began_later_no_file_is_asked(tmp_path):
    """A queue, too, may have a day in its name."""

    class Asked(Artifacts):
        def times(self, name):
            asked.append(name.rpartition("/")[2])
            return super().times(name)

    asked, world = [], Asked(str(tmp_path / "a"), S3Settings())
    young = ("d.q.scheduled__2020-01-02T00:00:00+00:00~1f3a9c00", "20200101T121500Z-1f3a9c")
    old = ("20200101T021500Z-1f3a9c", "d.to-20990101T000000.manual__2019-12-31T00:00:00+00:00~1f3a")
    for run in (*young, *old, "nightly"):
        folder = RunFolder(world, "d", "q", run)
        folder.write_json("report.json", {})
        os.utime(world.path(folder.file("report.json")), (0, 0))
    pruned = prune(world, queue_folder("d", "q"), datetime(2020, 1, 1, 12, tzinfo=UTC))
    assert set(pruned) == set(asked) == {*old, "nightly"}
    assert world.folders("runs/d/q") == sorted(young)


def test_a_location_that_is_neither_folder_nor_s3a_names_what_is_allowed():
    with pytest.raises(
        BadSetting,
        match="MAILSLICE_ARTIFACTS='ftp://x/y': allowed are a folder or s3a://bucket/prefix",
    ):
        Artifacts("ftp://x/y", S3Settings())


@pytest.mark.parametrize("location", ["s3a://key:hush@bucket/prefix", "http://key:hush@host/x"])
def test_keys_in_a_location_are_refused_and_not_shown(location):
    with pytest.raises(BadSetting, match=r"MAILSLICE_ARTIFACTS='\*\*\*@") as raised:
        Artifacts(location, S3Settings())
    assert "hush" not in str(raised.value)


def test_a_folder_that_cannot_be_written_names_itself(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="MAILSLICE_ARTIFACTS must be a folder"):
        Artifacts(str(tmp_path / "file"), S3Settings()).write("a/b.json", b"{}")


def test_a_folder_whose_parent_cannot_have_one_names_itself():
    with pytest.raises(
        BadSetting, match=r"artifacts /proc/nowhere/a\.json: .*MAILSLICE_ARTIFACTS must be a folder"
    ):
        Artifacts("/proc/nowhere", S3Settings()).write("a.json", b"{}")


def test_times_end_in_z():
    assert iso(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00Z"
    assert iso(None) is None


def test_runs_are_looked_through_once_in_a_ninetieth_of_the_retention(world):
    folder = RunFolder(world, "d", "q", "old")
    folder.write_json("report.json", {})
    os.utime(world.path(folder.file("report.json")), (0, 0))
    now, retention = datetime(2026, 11, 21, tzinfo=UTC), timedelta(days=90)
    world.write("runs/d/q/pruned.txt", (now - timedelta(hours=23)).isoformat().encode())
    assert prune_sometimes(world, "d", "q", now, retention) == []
    assert prune_sometimes(world, "d", "q", now + timedelta(hours=1), retention) == ["old"]
    assert prune_sometimes(world, "d", "q", now + timedelta(hours=2), retention) == []


def test_a_claim_outlives_an_audit_and_the_plan_made_by_it_with_the_shortest_retention_too():
    """Else a claim could expire before the last try of its plan: a mail would be sent twice."""
    shortest = load_settings({"MAILSLICE_RETENTION": "1h"}).duty.claim_ttl
    assert shortest >= 3 * max(OLDEST_PLAN, MAX_AUDIT_AGE)
    assert load_settings({"MAILSLICE_RETENTION": "90d"}).duty.claim_ttl == timedelta(days=90)


def test_old_decisions_of_people_are_pruned_and_new_ones_stay(world):
    for day in ("2026-08-22", "2026-08-23", "2026-11-20"):
        world.write(f"decisions/{day}/120000-ab.json", b"{}")
    now = datetime(2026, 11, 21, tzinfo=UTC)
    prune_sometimes(world, "d", "q", now, timedelta(days=90))
    assert world.folders("decisions") == ["2026-08-23", "2026-11-20"]


def test_old_runs_on_a_queue_that_no_run_is_about_any_more_are_pruned_by_those_on_others(world):
    now, retention = datetime(2026, 11, 21, tzinfo=UTC), timedelta(days=90)
    for duty, queue, run, noted in (
        ("d", "a.b", "old", timedelta(days=93)),
        ("e", "a.b", "old", timedelta(days=93)),
        ("e", "a.b", "new", timedelta(days=93)),
        ("e", "busy", "old", timedelta(days=91)),
    ):
        folder = RunFolder(world, duty, queue, run)
        folder.write_json("report.json", {})
        at = (now - timedelta(days=91 if run == "old" else 1)).timestamp()
        os.utime(world.path(folder.file("report.json")), (at, at))
        world.write(f"{queue_folder(duty, queue)}/pruned.txt", (now - noted).isoformat().encode())
    assert prune_sometimes(world, "d", "q", now, retention) == []
    assert world.folders(queue_folder("d", "a.b")) == []
    assert world.folders(queue_folder("e", "a.b")) == ["new"]
    assert world.folders(queue_folder("e", "busy")) == ["old"], "its own runs prune it"


@pytest.mark.parametrize(
    "note", [b"", b"2026-11-2", b"\xff", b"2026-11-21T00:00:00", b"2036-01-01T00:00:00+00:00"]
)
def test_a_note_that_is_damaged_or_of_a_clock_that_was_ahead_lets_the_next_report_look(world, note):
    world.write("runs/d/q/pruned.txt", note)
    world.write("data_docs/pruned.txt", note)
    now, retention = datetime(2026, 11, 21, 12, tzinfo=UTC), timedelta(days=90)
    assert prune_sometimes(world, "d", "q", now, retention) == []
    assert world.read("runs/d/q/pruned.txt") == now.isoformat().encode()
    assert world.read("data_docs/pruned.txt") == now.isoformat().encode()


def test_a_run_that_may_not_be_removed_keeps_no_other_and_fails_no_report(tmp_path, caplog):
    """Somebody ran the duty as root."""

    class OfRoot(Artifacts):
        def remove_folder(self, name):
            if name.endswith("/b"):
                raise BadSetting("[Errno 13] Permission denied")
            super().remove_folder(name)

    world = OfRoot(str(tmp_path / "a"), S3Settings())
    for run in "abc":
        world.write(f"runs/d/q/{run}/report.json", b"{}")
        os.utime(world.path(f"runs/d/q/{run}/report.json"), (0, 0))
    now = datetime(2026, 11, 21, tzinfo=UTC)
    assert prune_sometimes(world, "d", "q", now, timedelta(days=90)) == ["a", "c"]
    assert world.folders("runs/d/q") == ["b"]
    assert "b is not pruned: [Errno 13] Permission denied" in caplog.text


FIGURES = {
    "duty-queue_size-spool": {"duty": "queue_size", "queue": "spool"},
    "mailslice-spool": {"queue": "spool"},
    "mailslice-letters": {"queue": "letters"},
    "mailslice-audit-odd": {"queue": 'a"b\\c', "verdict": "lost"},
    "duty-reclaim": {"duty": "reclaim", "queue": ""},
    "mailslice-postal": {"state": "stuck"},
    "duty-queue_size-gone": {"duty": "queue_size", "queue": "gone"},
    "mailslice-audit-gone": {"queue": "gone", "verdict": "lost"},
}
OF_GONE = {"metrics/duty-queue_size-gone.prom", "metrics/mailslice-audit-gone.prom"}
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def with_figures(world):
    for name, labels in FIGURES.items():
        text = exposition([Sample("mailslice_f", 'queue="x"', labels, 1)])
        world.write(f"metrics/{name}.prom", text)
    world.write("metrics/node.prom", b'other_program{queue="gone"} 1\n')
    return set(world.files("metrics"))


def broker_with(queues, letters=(), **env):
    def listed():
        if isinstance(queues, Exception):
            raise queues
        return queues

    management = SimpleNamespace(mail_queues=listed, dead_letter_queues=lambda: list(letters))
    settings = load_settings(env, state_file=Path("/nonexistent"))
    return SimpleNamespace(settings=settings, management=management)


def test_figures_of_a_queue_that_is_gone_are_removed_by_their_label_once_a_day(world):
    files = with_figures(world)
    stores = broker_with(["spool", 'a"b\\c'], ["letters"])
    prune_metrics(world, stores, NOW)
    assert files - set(world.files("metrics")) == OF_GONE
    with_figures(world)
    prune_metrics(world, stores, NOW + timedelta(hours=23))
    assert set(world.files("metrics")) >= files
    prune_metrics(world, stores, NOW + timedelta(hours=24))
    assert files - set(world.files("metrics")) == OF_GONE


def test_figures_that_may_not_be_removed_or_read_keep_no_others(tmp_path, caplog):
    """Somebody ran the duty as root."""

    class OfRoot(Artifacts):
        def remove(self, name):
            if name.endswith("/a.prom"):
                raise BadSetting("[Errno 1] Operation not permitted")
            super().remove(name)

        def read(self, name):
            if name.endswith("/b.prom"):
                raise BadSetting("[Errno 13] Permission denied")
            return super().read(name)

    world = OfRoot(str(tmp_path / "a"), S3Settings())
    for name in "abc":
        world.write(f"metrics/{name}.prom", b'mailslice_f{queue="gone"} 1\n')
    prune_metrics(world, broker_with(["spool"]), NOW)
    left = ["metrics/a.prom", "metrics/b.prom", "metrics/pruned.txt"]
    assert world.files("metrics") == left
    assert "metrics/a.prom is not pruned: [Errno 1] Operation not permitted" in caplog.text
    assert "metrics/b.prom is not pruned: [Errno 13] Permission denied" in caplog.text


def test_without_a_list_of_queues_no_figure_is_removed(world):
    files = with_figures(world)
    prune_metrics(world, broker_with([]), NOW)
    with pytest.raises(StoreUnavailable):
        prune_metrics(world, broker_with(StoreUnavailable("away")), NOW + timedelta(days=1))
    postal = {"MAILSLICE_POSTAL_URL": "mysql://u:p@10.0.0.1:3306/postal"}
    prune_metrics(world, broker_with(["x"], **postal), NOW + timedelta(days=2))
    assert set(world.files("metrics")) >= files


def test_a_day_without_an_answer_of_the_broker_is_not_over(world):
    files = with_figures(world)
    with pytest.raises(StoreUnavailable):
        prune_metrics(world, broker_with(StoreUnavailable("away")), NOW)
    prune_metrics(world, broker_with(["spool", 'a"b\\c'], ["letters"]), NOW + timedelta(minutes=5))
    assert files - set(world.files("metrics")) == OF_GONE


def test_what_a_killed_write_has_left_goes_when_the_file_is_written_again(world):
    world.write("metrics/d.prom", b"1")
    left, coming = (world.path(f"metrics/.d.prom.{one}.coming") for one in ("a1", "b2"))
    for path in (left, coming, world.path("metrics/.d.prometheus.a1.coming")):
        Path(path).write_bytes(b"half")
    os.utime(left, (0, 0))
    world.write("metrics/d.prom", b"2")
    assert world.files("metrics") == [
        "metrics/.d.prom.b2.coming",
        "metrics/.d.prometheus.a1.coming",
        "metrics/d.prom",
    ]


def test_a_write_that_fails_leaves_nothing(world, monkeypatch):
    """A full disk is no fuller by it."""
    world.write("a/b", b"1")

    def full(_number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadSetting, match="No space left on device"):
        world.write("a/b", b"2")
    assert (world.files("a"), world.read("a/b")) == (["a/b"], b"1")


def test_a_file_is_read_as_it_is(world):
    """Whatever its name ends with: what unpacks it knows why."""
    assert not world.exists("a/b.csv.gz")
    world.write("a/b.csv.gz", b"\x1f\x8bnot zipped")
    assert world.exists("a/b.csv.gz")
    assert not world.exists("a")
    assert world.read("a/b.csv.gz") == b"\x1f\x8bnot zipped"


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_write_returns(
    world, monkeypatch
):
    """What is acknowledged after a write, such as an exported dead letter, outlives a power cut."""
    done = []
    fsync, replace = os.fsync, Path.replace

    def synced(number):
        kind = "folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file"
        done.append((kind, os.fstat(number).st_size if kind == "file" else None))
        fsync(number)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", lambda *paths: (done.append("named"), replace(*paths)))
    world.write("letters/1", b"content")
    assert done == [("file", 7), "named", ("folder", None)]
    assert world.read("letters/1") == b"content"
