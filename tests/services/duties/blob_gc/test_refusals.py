"""What stops a run before it changes anything.

Absent sources, gates, edited plans and candidates, clocks, wrong settings.
"""

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mailslice.admin import queues
from mailslice.admin.quarantine import Decided, Holder, Quarantine
from mailslice.duties.blob_gc import gates
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.ledger import Ledger
from mailslice.model.clock import system_clock
from mailslice.model.errors import BadInput, BadSetting, ClockSkew, GateFailed, PlanRefused, Refused
from mailslice.stores import open_stores
from mailslice.stores.blobs.s3_store import S3BlobStore
from tests.services.duties.blob_gc.conftest import OLD
from tests.services.duties.world import ahead, queued_mail

HOURS = timedelta(hours=1)


def but(heap, group, **changes):
    settings = heap.settings
    heap.settings = settings.model_copy(
        update={group: getattr(settings, group).model_copy(update=changes)}
    )


@pytest.fixture
def planned(heap):
    """A run that would delete one blob: (heap, request, its folder, the blob)."""
    key = heap.blob()
    heap.collect()
    request = heap.request()
    heap.steps(request, "plan", "check", at=2 * HOURS)
    return heap, request, heap.folder(request), key


def test_a_missing_table_that_no_setting_names_stops_the_run(heap):
    heap.blob()
    but(heap, "gc", absent_sources=())
    with pytest.raises(
        Refused,
        match=r"no table for enqueuedMailsV3 .*MAILSLICE_GC_ABSENT_SOURCES=enqueuedMailsV3$",
    ):
        heap.collect()
    row = Ledger(heap.stores, heap.settings).last("blob_gc")
    assert (row["status"], row["who"], row["queue"]) == ("refused", "tester", None)


def test_absent_sources_are_named_in_any_case_and_a_table_that_is_there_is_read_all_the_same(heap):
    key = heap.blob()
    heap.message(key, "x")
    but(heap, "gc", absent_sources=("ENQUEUEDMAILSV3", "messageV3"))
    report = heap.collect()
    assert (report["absentSources"], report["orphans"]) == (["enqueuedMailsV3"], 0)


@pytest.mark.parametrize(
    ("sources", "error", "said"),
    [
        ("nothere:blobid", Refused, "no table for nothere"),
        ("nowhere.extension:avatar", Refused, "no table for nowhere.extension"),
        (
            "extension:nocolumn",
            BadSetting,
            "nocolumn of extension does not exist; there are at, avatar",
        ),
        ("extension:at", BadSetting, "column at of extension is of type timestamp"),
        ("extension", BadSetting, "names no table"),
    ],
)
def test_a_source_of_the_operator_that_cannot_be_scanned_stops_the_run(heap, sources, error, said):
    but(heap, "gc", sources=sources)
    with pytest.raises(error, match=said):
        heap.collect()


def test_a_table_that_is_named_twice_or_is_james_own_is_one_source_with_all_its_columns(
    heap,
):
    keys = [heap.blob() for _ in range(3)]
    heap.cql("CREATE TABLE {}.notes (owner text PRIMARY KEY, one text, two text)")
    try:
        heap.cql(f"INSERT INTO {{}}.notes (owner, one, two) VALUES ('x', '{keys[0]}', '{keys[1]}')")
        before = heap.collect(dry_run=True)
        but(heap, "gc", sources="notes:one;notes:two;MessageV3:headerContent")
        report = heap.collect()
        assert (before["orphans"], report["orphans"]) == (3, 1)
        assert report["referenceSourceCount"] == before["referenceSourceCount"] + 1
    finally:
        heap.cql("DROP TABLE {}.notes")
        heap.used.clear()


@pytest.fixture
def extensions(heap):
    """Tables in James' keyspace that James does not make."""
    tables = (
        "avatars (owner text PRIMARY KEY, blobid text)",
        'snippets (owner text PRIMARY KEY, bucket_name text, "blobId" text)',
        "storageinformation (owner text PRIMARY KEY, bucketname text, blobid text)",
        "imapuidtable (messageid uuid PRIMARY KEY, headercontent text)",
        "encrypted (id int PRIMARY KEY, position_blob_id_mapping frozen<map<int, text>>)",
        "pairs (owner text PRIMARY KEY, blob_ids tuple<text, int>)",
    )
    for table in tables:
        heap.cql(f"CREATE TABLE {{}}.{table}")
    yield
    for table in tables:
        heap.cql(f"DROP TABLE {{}}.{table.partition(' ')[0]}")
    heap.used.clear()


def test_columns_that_look_like_references_and_are_read_by_no_source_fail_the_gate_by_name(
    heap, extensions
):
    avatar = heap.blob()
    report = heap.collect()
    columns = ["avatars.blobid", *OF_COLLECTIONS, "snippets.blobId"]
    assert report["unreadColumns"] == columns, "an empty table refers to nothing yet"
    said = (
        f"no source reads {', '.join(columns)}: if these are blob ids, name them in "
        "MAILSLICE_GC_SOURCES"
    )
    assert said in heap.collect(dry_run=True)["message"]

    heap.cql("INSERT INTO {}.avatars (owner, blobid) VALUES ('alice', %s)", avatar)
    with pytest.raises(GateFailed, match=r"MAILSLICE_GC_UNREAD_COLUMNS\); not: avatars\.blobid"):
        heap.collect(2 * HOURS)
    assert heap.keys() == {avatar}
    but(heap, "gc", unread_columns=("Avatars.BlobId", "snippets.blobid", *OF_COLLECTIONS))
    assert heap.collect(dry_run=True)["unreadColumns"] == []
    but(heap, "gc", unread_columns=("snippets.blobid", *OF_COLLECTIONS), sources="avatars:blobid")
    report = heap.collect(2 * HOURS)
    assert (report["unreadColumns"], report["orphans"], heap.keys()) == ([], 0, {avatar})


def test_blob_ids_in_any_collection_can_be_named_and_keep_their_blobs(heap, extensions):
    """TMail keeps the blobs of an encrypted mail by their position."""
    positions, pair, orphan = heap.blob(), heap.blob(), heap.blob()
    heap.cql(
        "INSERT INTO {}.encrypted (id, position_blob_id_mapping) VALUES (1, %s)", {0: positions}
    )
    heap.cql("INSERT INTO {}.pairs (owner, blob_ids) VALUES ('alice', (%s, 1))", pair)
    with pytest.raises(GateFailed, match=r"not: encrypted\.position_blob_id_mapping, pairs"):
        heap.collect()
    but(heap, "gc", sources="encrypted:position_blob_id_mapping;pairs:blob_ids")
    heap.twice()
    assert heap.keys() == {positions, pair}, orphan


OF_COLLECTIONS = ("encrypted.position_blob_id_mapping", "pairs.blob_ids")


def test_a_source_that_lost_most_of_its_references_stops_the_run_until_it_is_accepted(heap):
    keys = {heap.blob() for _ in range(10)}
    for key in keys:
        heap.message(key, key)
    heap.collect()
    heap.cql("TRUNCATE {}.messagev3")
    with pytest.raises(
        GateFailed, match=r"No source lost more than 0.5 of its references .*lost_share is 1 "
    ):
        heap.collect(2 * HOURS)
    with pytest.raises(GateFailed, match="lost_share"):
        heap.collect(3 * HOURS)
    report = heap.collect(4 * HOURS, max_shrink=1)
    assert (report["candidates"], report["gcedBlobCount"]) == (10, 0)
    assert heap.keys() == keys


def test_a_source_that_is_not_read_any_more_lost_all_its_references(heap):
    key = heap.blob()
    heap.cql("INSERT INTO {}.extension (owner, at, id, avatar) VALUES ('o', 0, 'i', %s)", key)
    whole = heap.settings
    but(heap, "gc", sources="extension:avatar")
    heap.collect()
    heap.settings = whole
    with pytest.raises(GateFailed, match="No source lost more than"):
        heap.collect(2 * HOURS)
    assert heap.keys() == {key}


def test_what_a_cleanup_took_from_the_view_is_not_lost_and_volatile_sources_may_shrink(heap):
    for _ in range(4):
        heap.row("a", "b")
    heap.collect()
    heap.cql("TRUNCATE {}.enqueuedmailsv4")
    with pytest.raises(GateFailed, match="lost_share"):
        heap.collect(HOURS)
    but(heap, "gc", volatile_sources=("enqueuedmailsv4",))
    assert heap.collect(HOURS)["references"] == 0


def test_a_view_that_lost_live_mails_stops_the_run_whatever_cleanups_deleted(heap):
    header, body = heap.blob(), heap.blob()
    heap.row(header, body)
    heap.collect()

    def ledger(duty, at, **counts):
        started = ahead(OLD + at)().isoformat()
        report = {"duty": duty, "queue": "spool", "status": "done", "finished": None}
        report |= {"dagRun": None, "who": "x", "reason": None, "planDigest": None, **counts}
        Ledger(heap.stores, heap.settings).write(
            {**report, "run": f"{uuid.uuid4()}", "started": started}
        )

    ledger("queue_cleanup", HOURS * 0.75, applied=1000)
    ledger("queue_size", HOURS * 0.25, live=1)
    assert heap.collect(HOURS / 2)["liveMails"] == 1
    heap.cql("TRUNCATE {}.enqueuedmailsv4")
    with pytest.raises(GateFailed, match=r"each of 1 live mails.*view_references is 0"):
        heap.collect(HOURS)
    ledger("queue_size", HOURS * 0.8, live=0)
    assert heap.collect(HOURS)["candidates"] == 2


def test_what_own_tables_alone_refer_to_has_copies_and_outlives_a_wrong_own_keyspace(heap):
    """A mail in quarantine, whose row a cleanup took: no gate knows that own sources are others."""
    header, body = heap.blob(content=b"Subject: x\r\n\r\n"), heap.blob(content=b"body")
    queue, item = queues.create(heap.stores, "quarantined"), queued_mail(blobs=(header, body))
    quarantine = Quarantine(heap.stores, queue, system_clock)
    holder = Holder("w", "loaded", system_clock(), HOURS)
    kept = quarantine.settle(quarantine.keep(item, holder, Decided("closed", "hung", "tester")))
    assert heap.collect()["orphans"] == 0
    own, keyspace = heap.settings, f"{heap.settings.own.keyspace}_wrong"
    but(heap, "own", keyspace=keyspace)
    try:
        assert heap.collect(HOURS)["candidates"] == 2
        report = heap.collect(3 * HOURS)
        assert (report["gcedBlobCount"], heap.keys(), heap.kept()) == (2, set(), {header, body})
        with open_stores(heap.settings) as stores:
            assert Quarantine(stores, queue, system_clock).sweep() == 0
    finally:
        heap.stores.cassandra.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")
    heap.settings = own
    assert quarantine.content(kept) == b"Subject: x\r\n\r\nbody"
    heap.used.add("enqueuedmailsv4")
    assert quarantine.release(kept) != item.enqueue_id
    assert len(heap.keys()) == 2


def test_a_share_of_the_bucket_that_is_too_large_is_not_deleted(heap):
    keys = {heap.blob() for _ in range(3)}
    heap.message(heap.blob(), heap.blob())
    heap.collect()
    with pytest.raises(
        GateFailed, match=r"At most 0.5 of all blobs are to go .*planned_share is 0.6 "
    ):
        heap.collect(2 * HOURS, max_share=0.5)
    assert keys < heap.keys()
    heap.params.pop("max_share")
    with pytest.raises(GateFailed, match=r"At most 0\.1 of all blobs are to go"):
        heap.collect(2 * HOURS)
    but(heap, "gc", max_share=0.6)
    assert heap.collect(2 * HOURS)["gcedBlobCount"] == 3


def test_far_more_than_the_last_runs_deleted_needs_a_reason(heap, monkeypatch):
    monkeypatch.setattr(gates, "MANY", 5)
    report = {"duty": "blob_gc", "queue": None, "status": "done", "applied": 1, "finished": None}
    report |= {"dagRun": None, "who": "x", "reason": None, "planDigest": None}
    for number in range(3):
        started = (datetime(2026, 11, 1, tzinfo=UTC) + number * HOURS).isoformat()
        Ledger(heap.stores, heap.settings).write(
            {**report, "run": f"{uuid.uuid4()}", "started": started}
        )
    keys = {heap.blob() for _ in range(11)}
    heap.collect()
    with pytest.raises(
        GateFailed, match=r"at most 10 times what the last runs did .*planned is 11"
    ):
        heap.collect(2 * HOURS)
    assert heap.keys() == keys
    with pytest.raises(BadInput, match="unusual needs a reason"):
        heap.collect(2 * HOURS, unusual=True)
    report = heap.collect(2 * HOURS, unusual=True, reason="after the outage of October")
    assert (report["gcedBlobCount"], heap.keys()) == (11, set())


def test_a_plan_json_that_was_edited_is_refused(planned):
    heap, request, folder, key = planned
    plan = folder.read_json("plan.json")
    for name, value in {
        "restores": {"file": "plan/x.parquet", "rows": 1, "digest": "1-1-1"},
        "keep": 0,
        "blobs": 10**6,
        "scans": [],
    }.items():
        folder.write_json("plan.json", {**plan, "decided": {**plan["decided"], name: value}})
        for step in ("check", "apply"):
            with pytest.raises(PlanRefused, match="was changed: its digest is"):
                heap.steps(request, step, at=2 * HOURS)
    assert heap.keys() == {key}


def rewrite(path: Path, **changes: object) -> None:
    table = pq.read_table(path)
    pq.write_table(
        pa.Table.from_pylist([{**row, **changes} for row in table.to_pylist()], table.schema), path
    )


def test_a_plan_file_with_fewer_blobs_than_were_planned_fails_the_gate(heap):
    for _ in range(2):
        heap.blob()
    heap.collect()
    request = heap.request()
    heap.steps(request, "plan", at=2 * HOURS)
    for path in Path(heap.folder(request).uri, "plan").glob("delete-*.parquet"):
        pq.write_table(pq.read_table(path).slice(0, 1), path)
    with pytest.raises(GateFailed, match="as many rows as were planned"):
        heap.steps(request, "check", at=2 * HOURS)


def test_a_plan_file_that_was_edited_deletes_nothing(planned):
    heap, request, folder, key = planned
    victim = heap.blob()
    (path,) = Path(folder.uri, "plan").glob("delete-*.parquet")
    rewrite(path, key=victim)
    with pytest.raises(PlanRefused, match="another digest"):
        heap.steps(request, "apply", at=2 * HOURS)
    path.unlink()
    with pytest.raises(PlanRefused, match="changed or removed"):
        heap.steps(request, "apply", at=2 * HOURS)
    assert heap.keys() == {key, victim}


@pytest.mark.parametrize(
    "damage",
    [
        "edited",
        "waited",
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("gone", "note")),
    ],
)
def test_candidates_that_were_changed_or_lost_wait_anew(heap, damage):
    key = heap.blob()
    first = heap.collect()
    run = RunFolder(artifacts(heap.settings), "blob_gc", "-", first["run"])
    (path,) = Path(run.uri, "plan").glob("candidate-*.parquet")
    if damage == "edited":
        rewrite(path, since_ms=0)
    elif damage == "gone":
        path.unlink()
    elif damage == "waited":
        note = Path(run.uri).with_name("candidates.json")
        note.write_text(
            json.dumps({**json.loads(note.read_text()), "recorded": "2026-01-01T00:00:00.000Z"})
        )
    else:
        Path(run.uri).with_name("candidates.json").write_text('{"run": "x"')
    report = heap.collect(timedelta(minutes=30))
    assert (report["gcedBlobCount"], report["candidates"], report["candidatesOf"]) == (0, 1, None)
    assert (
        ("forgotten and wait anew" in report["message"])
        or damage == "note"
        or report["status"] == "done"
    )
    assert heap.collect(3 * HOURS)["gcedBlobCount"] == 1
    assert heap.kept() == {key}


def test_apply_without_a_passed_gate_and_an_old_plan_are_refused(planned):
    heap, request, folder, key = planned
    with pytest.raises(PlanRefused, match="24 h"):
        heap.steps(request, "apply", at=27 * HOURS)
    folder.artifacts.remove(folder.file("check.json"))
    with pytest.raises(PlanRefused, match="the step check comes first"):
        heap.steps(request, "apply", at=2 * HOURS)
    assert heap.keys() == {key}


def test_a_plan_about_another_bucket_is_refused(planned):
    heap, request, _, key = planned
    but(heap, "s3", bucket=heap.settings.own.bucket)
    with pytest.raises(PlanRefused, match="is about bucket"):
        heap.steps(request, "apply", at=2 * HOURS)
    but(heap, "s3", bucket=heap.stores.blobs.bucket)
    assert heap.keys() == {key}


def test_a_bucket_that_is_not_there_and_one_for_both_are_refused(heap):
    but(heap, "own", bucket=heap.settings.s3.bucket)
    with pytest.raises(BadSetting, match="is James' bucket"):
        heap.collect()
    but(heap, "s3", bucket="nowhere-at-all")
    with pytest.raises(
        BadSetting, match="MAILSLICE_S3_BUCKET=nowhere-at-all: there is no such bucket"
    ):
        heap.collect()


@pytest.mark.parametrize("again", [("plan",), ("plan", "check", "apply", "verify", "report")])
def test_a_run_that_is_made_again_from_plan_on_keeps_what_it_recorded(heap, again):
    """As Airflow does when somebody clears the whole DAG run."""
    key = heap.blob()
    request = heap.request()
    heap.steps(request, "plan", "check", "apply", "verify", "report")
    heap.steps(request, *again, at=HOURS / 2)
    report = heap.collect(HOURS + HOURS / 4)
    assert (report["gcedBlobCount"], report["candidatesOf"], heap.keys()) == (1, request.run, set())
    assert key in heap.kept()


def test_a_clock_of_s3_that_differs_is_refused(heap, monkeypatch):
    monkeypatch.setattr(S3BlobStore, "now_skew", lambda *_: timedelta(minutes=3))
    with pytest.raises(ClockSkew, match=r"180 s; allowed are 150 s"):
        heap.collect()
    request = heap.request(grace="12m")
    heap.steps(request, "plan", "check")
    monkeypatch.setattr(S3BlobStore, "now_skew", lambda *_: timedelta(minutes=4))
    with pytest.raises(ClockSkew, match=r"240 s; allowed are 180 s"):
        heap.steps(request, "apply")
    monkeypatch.setattr(S3BlobStore, "now_skew", lambda *_: timedelta(minutes=3))
    report = heap.steps(request, "apply", "verify", "report")
    assert report["status"] == "nothing to do"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"grace": "soon"}, "grace='soon'.*90s, 15m"),
        ({"max_share": 1.5}, "max_share=1.5"),
        ({"grace": "0s"}, "grace='0s': allowed: more than 0s"),
        ({"delete_after": "0s"}, "delete_after='0s': allowed: more than 0s"),
        ({"delete_after": "99999999w"}, "delete_after"),
        ({"keep": "-1s"}, "keep='-1s'"),
        ({"inventory": "/nowhere/manifest.json"}, "--inventory '/nowhere/manifest.json'"),
        ({"queue": "spool"}, "queue is not a param"),
    ],
)
def test_a_bad_param_names_itself_and_what_is_allowed(heap, params, said):
    with pytest.raises(BadInput, match=said):
        heap.collect(**params)


def test_an_inventory_stands_for_the_listing(heap, tmp_path):
    orphan, unlisted = heap.blob(), heap.blob()
    modified = {blob.key: blob for blob in heap.stores.blobs.list()}[orphan].modified
    line = [
        f'"{heap.settings.s3.bucket}"',
        f'"{orphan}"',
        '"7"',
        f'"{modified.isoformat().replace("+00:00", "Z")}"',
    ]
    (tmp_path / "list.csv").write_text(",".join(line) + "\n")
    report = heap.twice(inventory=str(tmp_path))
    assert (report["gcedBlobCount"], report["blobCount"], report["listing"]["inventory"]) == (
        1,
        1,
        str(tmp_path),
    )
    assert heap.keys() == {unlisted}
    third = heap.collect(4 * HOURS, inventory=str(tmp_path))
    assert (third["orphans"], json.dumps(third["restored"])) == (1, "0")
