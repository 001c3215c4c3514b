"""The whole road with real Spark jobs, over a listing of many ranges.

And the command line of what was deleted.
"""

import json
import uuid
from datetime import timedelta
from functools import partial

import pytest

from mailslice.cli.main import run as command_line
from mailslice.cli.output import Output
from mailslice.duties.blob_gc.listing import key_ranges
from mailslice.duties.blob_gc.trash import Trash
from mailslice.stores.blobs.s3_store import S3BlobStore
from tests.services.duties.world import environment

HOURS = timedelta(hours=1)


@pytest.fixture
def small_pages(heap, monkeypatch):
    """The driver asks for pages of two keys, and cuts the bucket into ranges of half a key."""
    monkeypatch.setattr(S3BlobStore, "page_size", 2)
    return heap.using(key_ranges=partial(key_ranges, keys_a_range=0.5))


def test_two_phases_with_spark_delete_what_they_do_without(with_spark, small_pages):
    heap = small_pages
    orphans = {
        heap.blob(f"1_{600 + number % 3}_{uuid.uuid4()}" if number % 2 else "")
        for number in range(12)
    }
    stays = [heap.blob(f"1_600_{uuid.uuid4()}" if number % 2 else "") for number in range(6)]
    for key in stays[:4]:
        heap.message(key, key)
    heap.row(stays[4], stays[5])
    doubtful = heap.blob("1_600_" + "ab+/" * 10 + "abc=")
    heap.message("1_600_" + "ab-_" * 10 + "abc=", stays[0])
    unknown = heap.blob("backup/readme.txt")
    first = heap.collect()
    assert (first["orphans"], first["candidates"], first["references"]) == (12, 12, 12)
    assert first["unreferenced"] == {
        "unknown": 1,
        "doubtful": 1,
        "active": 0,
        "young": 0,
        "orphan": 12,
    }
    assert first["listing"]["wanted"] > 20
    second = heap.collect(2 * HOURS)
    assert (second["gcedBlobCount"], second["errorCount"], second["status"]) == (12, 0, "done")
    assert heap.keys() == {*stays, doubtful, unknown}
    assert heap.kept() == orphans
    assert second["dataDocs"].endswith(".html")
    back = min(orphans)
    heap.message(back, back)
    assert heap.collect(3 * HOURS)["restored"] == 1
    assert heap.keys() == {*stays, doubtful, unknown, back}


@pytest.fixture
def kept(heap, monkeypatch):
    """(heap, three deleted keys, the run that deleted them)."""
    keys = sorted(heap.blob(content=b"content of " + str(number).encode()) for number in range(3))
    run = heap.twice()["run"]
    for name, value in environment(heap.settings).items():
        monkeypatch.setenv(name, value)
    return heap, keys, run


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_blobs_are_restored_by_key_and_those_without_a_copy_are_said(kept, capsys):
    heap, keys, run = kept
    assert command_line(["blobs", "kept", "--json"]) == 0
    assert [(each["key"], each["run"], each["bytes"]) for each in lines(capsys)] == [
        (key, run, 12) for key in keys
    ]
    assert command_line(["blobs", "restore", keys[0], "--dry-run", "--json"]) == 0
    assert [each["status"] for each in lines(capsys)] == ["restored"]
    assert heap.keys() == set()
    nowhere = str(uuid.uuid4())
    assert (
        command_line(
            ["blobs", "restore", keys[0], nowhere, keys[0], "--json", "--reason", "a user asked"]
        )
        == 1
    )
    assert [(each["key"], each["status"]) for each in lines(capsys)] == [
        (keys[0], "restored"),
        (nowhere, "no copy"),
    ]
    assert heap.keys() == {keys[0]}
    assert heap.stores.blobs.get(keys[0]).startswith(b"content of ")
    assert command_line(["blobs", "restore", keys[0], "--json"]) == 0
    assert [each["status"] for each in lines(capsys)] == ["present"]


def test_all_blobs_of_a_run_are_restored_and_are_young_again(kept, capsys):
    heap, keys, run = kept
    assert command_line(["blobs", "restore", "--run", run]) == 0
    assert "restored" in capsys.readouterr().out
    assert heap.keys() == set(keys)
    assert command_line(["blobs", "restore", "--run", "nobody"]) == 2
    assert "no copy of this run is kept" in capsys.readouterr().err
    report = heap.collect(timedelta(hours=2, minutes=30))
    assert (report["gcedBlobCount"], report["candidates"]) == (0, 3)


@pytest.mark.parametrize(("within", "counts"), [(False, {"restored": 3}), (True, {})])
def test_what_was_restored_when_a_signal_came_is_recorded(
    kept, capsys, monkeypatch, within, counts
):
    """Also one that came within the batch: then nobody knows which of it are back."""
    heap, keys, run = kept
    restore = Trash.restore

    def closed(_, items, **__):
        next(items)
        raise KeyboardInterrupt

    def interrupted(*args, **more):
        restore(*args, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if within:
            patch.setattr(Trash, "restore", interrupted)
        else:
            patch.setattr(Output, "rows", closed)
        assert command_line(["blobs", "restore", "--run", run]) == 130
    assert heap.keys() == set(keys)
    assert command_line(["decisions", "list", "--json"]) == 0
    facts = [one["facts"] for one in lines(capsys) if one["action"] == "blobs restore"]
    facts = [one for one in facts if one["run"] == run]
    assert [(one["begun"], one["counts"]) for one in facts] == [(3, counts)]


def test_restore_wants_keys_or_a_run(kept, capsys):
    _, keys, run = kept
    assert command_line(["blobs", "restore"]) == 2
    assert command_line(["blobs", "restore", keys[0], "--run", run]) == 2
    assert "give either keys or --run" in capsys.readouterr().err
