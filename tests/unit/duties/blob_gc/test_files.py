"""Plan files, plans and notes that refuse what was changed, names of kept copies, inventories."""

import gzip
import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.duties.blob_gc.duty import DUTY
from mailslice.duties.blob_gc.gates import lost_share
from mailslice.duties.blob_gc.listing import find_inventory, read_inventory
from mailslice.duties.blob_gc.orphans import BlobWriter, PlannedBlob, blobs_of
from mailslice.duties.blob_gc.plan import (
    CandidateRecord,
    GcPlan,
    Listing,
    SourceScan,
    record_candidates,
    recorded_candidates,
)
from mailslice.duties.blob_gc.trash import TRASH_PREFIX, Trash, Trashed
from mailslice.engine.frames import InProcess
from mailslice.engine.row_files import RowFile, RowGroup, read_groups
from mailslice.maintenance.artifacts import Artifacts
from mailslice.maintenance.plan import load_plan
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.model.errors import BadInput, BadSetting, PlanRefused
from mailslice.model.mail import BlobId
from mailslice.model.settings import OwnSettings, S3Settings, Settings
from tests.unit.duties.judging import run_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
UUID_TEXT = "e2b53fb4-f230-473d-b3e4-54f45c80c05f"
BLOBS = [
    PlannedBlob(BlobId(f"key-{number}"), number, 1_700_000_000 + number, None if number % 2 else 7)
    for number in range(2500)
]
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@pytest.fixture
def place(tmp_path):
    return Artifacts(str(tmp_path), S3Settings())


@pytest.fixture
def groups(place):
    place.folder("run/plan")
    writer = BlobWriter(place, "run", "delete")
    for blob in BLOBS:
        writer.add(blob)
    return writer.close()


def test_plan_files_come_back_a_thousand_keys_a_group(place, groups):
    found = [blobs_of(rows) for _, rows in read_groups(place, "run", groups)]
    assert [len(blobs) for blobs in found] == [1000, 1000, 500]
    assert [blob for blobs in found for blob in blobs] == BLOBS


@pytest.mark.parametrize(
    ("column", "value"), [("key", "other"), ("size", 99), ("modified_s", 1), ("since_ms", 1)]
)
def test_a_plan_file_with_one_changed_value_is_refused(place, groups, column, value):
    path = Path(place.path(f"run/{groups[0].file}"))
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[3][column] = value
    with pq.ParquetWriter(path, table.schema) as writer:
        for at in range(0, len(rows), 1000):
            writer.write_table(pa.Table.from_pylist(rows[at : at + 1000], table.schema))
    with pytest.raises(PlanRefused, match="another digest"):
        list(read_groups(place, "run", groups))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"PAR1"),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
    ],
)
def test_a_plan_file_that_is_gone_or_cut_is_refused(place, groups, damage):
    damage(Path(place.path(f"run/{groups[0].file}")))
    with pytest.raises(PlanRefused, match="changed or removed"):
        list(read_groups(place, "run", groups))


def test_a_group_that_is_not_in_the_file_is_refused(place, groups):
    with pytest.raises(PlanRefused, match="changed or removed"):
        list(read_groups(place, "run", [RowGroup(groups[0].file, 9, 1, groups[0].digest)]))


def plan() -> GcPlan:
    return GcPlan(
        run="r-1",
        bucket="b",
        made_at=NOW,
        grace=timedelta(hours=1),
        delete_after=timedelta(days=1),
        keep=timedelta(days=7),
        blobs=9,
        deletes=(RowGroup("plan/delete-d.parquet", 0, 3, "x"),),
        candidates=(),
        restores=RowFile("plan/restores.parquet", 0, "0-0-0"),
        scans=(SourceScan(source="messageV3", before=None, parts=8, read=8, references=5),),
        listing=Listing(inventory=None, wanted=3, read=3, twice=0, holes=0),
        unread_columns=("avatars.blobid",),
    )


@pytest.fixture
def run(tmp_path):
    return run_of(tmp_path, "blob_gc", queue=NO_QUEUE)


@pytest.mark.parametrize(
    ("name", "value"),
    {
        "keep": 0,
        "deleteAfter": 0,
        "scans": [],
        "listing": {"inventory": None, "wanted": 3, "read": 4, "twice": 0, "holes": 0},
        "unreadColumns": [],
        "bucket": "other",
        "restores": {"file": "plan/x.parquet", "rows": 1, "digest": "1-1-1"},
        "blobs": 10**9,
        "deletes": [],
        "candidates": [{"file": "x", "number": 0, "rows": 4, "digest": "x"}],
    }.items(),
)
def test_a_plan_comes_back_and_each_edit_of_it_is_refused(run, name, value):
    decided = plan().as_json()
    run.folder.write_json("plan.json", {"decided": decided, "planDigest": plan().digest})
    assert load_plan(run, GcPlan) == plan()
    edited = {**decided, name: value}
    run.folder.write_json("plan.json", {"decided": edited, "planDigest": plan().digest})
    with pytest.raises(PlanRefused, match="was changed"):
        load_plan(run, GcPlan)


def test_a_plan_counts_what_is_to_go_and_what_is_read():
    gone = SourceScan(source="extension", before=7, vanished=True)
    more = plan().model_copy(update={"scans": (*plan().scans, gone)})
    assert (more.planned, more.waiting, more.sources) == (3, 0, {"messageV3": 5})
    assert plan().model_copy(update={"deletes": ()}).has_work, "it forgets what is over"


def noted(run_name="r-1"):
    groups = (RowGroup("plan/candidate-x.parquet", 0, 4, "x"),)
    return CandidateRecord(
        run=run_name, recorded=NOW, groups=groups, spared=frozenset({"b", "a"}), sources={"s": 2}
    )


def test_a_note_on_candidates_comes_back_and_an_edit_is_seen(place):
    assert recorded_candidates(place) is None
    record_candidates(place, noted())
    assert recorded_candidates(place) == noted()
    (file,) = place.files("runs")
    value = json.loads(place.read(file))
    for edited in ({**value, "recorded": "2026-01-01T00:00:00Z"}, {**value, "spared": []}):
        place.write(file, json.dumps(edited).encode())
        found = recorded_candidates(place)
        assert ("was changed" in found.forgotten, found.groups) == (True, ())
        assert found.sources == {"s": 2}
    for broken in (b'{"run": "x"', b'{"run": "x"}', b"[]", b"7"):
        place.write(file, broken)
        assert recorded_candidates(place) is None


def test_a_run_that_is_planned_again_retains_what_it_has_recorded_itself(run):
    assert not DUTY.retained(run)
    record_candidates(run.folder.artifacts, noted("another"))
    assert not DUTY.retained(run)
    record_candidates(run.folder.artifacts, noted())
    assert DUTY.retained(run) == {"plan/candidate-x.parquet"}


@given(keys, st.text("abc+~:._-", min_size=1, max_size=9), st.sampled_from(["", "james"]))
def test_the_name_of_a_kept_copy_says_what_it_is_of(key, run, bucket):
    kept = Trashed(NOW, run, BlobId(key), 7, bucket)
    assert Trashed.of(kept.path, 7) == kept


@pytest.mark.parametrize(
    "name",
    [
        "kept/",
        "kept/20261121T120000Z/run/",
        "kept/soon/run/key",
        "kept/20261332T256199Z/run/key",
        "quarantine/spool/x",
        "kept/20261121T120000Z/key",
    ],
)
def test_other_names_are_no_kept_copies(name):
    assert name.startswith(TRASH_PREFIX) or Trashed.of(name, 0) is None
    assert Trashed.of(name, 0) is None


def test_the_own_bucket_must_not_be_james_bucket():
    with pytest.raises(BadSetting, match="MAILSLICE_OWN_BUCKET=james is James' bucket"):
        Trash(Settings(own=OwnSettings(bucket="james")))


@pytest.mark.parametrize(
    ("before", "now", "cleaned", "share"),
    [(None, 0, 0, 0.0), (0, 5, 0, 0.0), (100, 100, 0, 0.0), (100, 20, 0, 0.8), (100, 20, 80, 0.0)],
)
def test_what_a_cleanup_took_is_not_lost(before, now, cleaned, share):
    scan = SourceScan(source="s", references=now, before=before, cleaned=cleaned)
    assert lost_share(scan) == share


CSV = """"james","1_2_a%2Fb%2B","10","2026-11-20T10:00:00.000Z"
"james","plain+key","20","2026-11-20T10:00:01.999Z"
"other","not+ours","30","2026-11-20T10:00:00.000Z"
"""
WANTED = [("1_2_a/b+", 10, 1795168800), ("plain key", 20, 1795168801)]


def read(where):
    with read_inventory(InProcess(), Settings(), find_inventory(Settings(), str(where))) as found:
        assert sum(each["blobs"] for each in found.summaries) == len(found.rows)
        return sorted((row["key"], row["size"], row["modified_s"]) for row in found.rows)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("header", ["", "Bucket,Key,Size,LastModifiedDate\n"])
def test_a_csv_inventory_gives_the_buckets_own_objects(tmp_path, zipped, header):
    data = (header + CSV).encode()
    file = tmp_path / ("part.csv.gz" if zipped else "part.csv")
    file.write_bytes(gzip.compress(data) if zipped else data)
    assert read(tmp_path) == read(file) == WANTED


def test_a_manifest_names_the_columns_and_the_files(tmp_path):
    (tmp_path / "data").mkdir()
    line = (
        '"james","10","1_2_a%2Fb%2B","v1","true","false","2026-11-20T10:00:00.000Z"\n'
        '"james","10","gone","v2","true","true","2026-11-20T10:00:00.000Z"\n'
    )
    (tmp_path / "data" / "x.csv").write_text(
        line + '"james","10","older","v0","false","false","2026-11-20T10:00:00.000Z"\n'
    )
    schema = "Bucket, Size, Key, VersionId, IsLatest, IsDeleteMarker, LastModifiedDate"
    manifest = {
        "fileFormat": "CSV",
        "fileSchema": schema,
        "destinationBucket": "arn:aws:s3:::inv",
        "files": [{"key": "data/x.csv"}],
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert read(tmp_path / "manifest.json") == WANTED[:1]
    for source, said in (
        ("james", ""),
        ("arn:aws:s3:::james", ""),
        ("other", "lists bucket other, not MAILSLICE_S3_BUCKET=james"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "sourceBucket": source}))
        with pytest.raises(BadInput, match=said) if said else nullcontext():
            assert read(tmp_path / "manifest.json") == WANTED[:1]


def test_a_parquet_inventory_is_read_by_the_names_of_its_columns(tmp_path):
    when = datetime(2026, 11, 20, 10, tzinfo=UTC)
    rows = [
        {
            "bucket": "james",
            "key": "1_2_a/b+",
            "size": 10,
            "last_modified_date": when,
            "is_latest": True,
            "is_delete_marker": False,
        }
    ]
    rows += [
        {**rows[0], "key": "old", "is_latest": False},
        {**rows[0], "key": "gone", "is_delete_marker": True},
        {**rows[0], "bucket": "other"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "part.parquet")
    assert read(tmp_path) == WANTED[:1]


@pytest.mark.parametrize(
    "where", ["nowhere", "ftp://x/y", "empty", "broken.json", "orc.json", "part.csv"]
)
def test_what_is_no_inventory_says_so(tmp_path, where):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.json").write_text("{}")
    (tmp_path / "orc.json").write_text(json.dumps({"fileFormat": "ORC", "files": [{"key": "x"}]}))
    (tmp_path / "part.csv").write_text('"james","k","many","yesterday"\n')
    with pytest.raises(BadInput, match="--inventory"):
        read(where if "://" in where else tmp_path / where)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-8],
        lambda data: data[: len(data) // 2],
        lambda data: data[:20] + b"\xff" * 30 + data[50:],
        lambda data: b"x" + data,
    ],
)
def test_a_damaged_file_of_an_inventory_is_named(tmp_path, damage):
    (tmp_path / "part.csv.gz").write_bytes(
        damage(
            gzip.compress(
                "".join(
                    f'"james","{number * 7919}","10","2026-11-20T10:00:00Z"\n'
                    for number in range(500)
                ).encode()
            )
        )
    )
    with pytest.raises(BadInput, match=r"--inventory: .*part\.csv\.gz cannot be read"):
        read(tmp_path)


def test_to_find_an_inventory_reads_its_manifest_alone(tmp_path, monkeypatch):
    """Its files are gigabytes, and workers read them."""
    opened = []
    reading = Artifacts.read
    monkeypatch.setattr(
        Artifacts, "read", lambda self, name: opened.append(name) or reading(self, name)
    )
    (tmp_path / "part.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    (tmp_path / "manifest.json").write_text(
        json.dumps(
            {
                "fileFormat": "CSV",
                "fileSchema": "Bucket, Key, Size, LastModifiedDate",
                "files": [{"key": "a/part.csv.gz"}],
            }
        )
    )
    assert [
        find_inventory(Settings(), str(tmp_path / name)).files
        for name in ("part.csv.gz", "manifest.json")
    ] == [("part.csv.gz",)] * 2
    assert opened == ["manifest.json"]
