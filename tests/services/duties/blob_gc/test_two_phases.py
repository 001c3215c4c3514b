"""What a run finds and records, and what a later run deletes.

Every kind of blob beside each other, and time.
"""

import hashlib
import json
import uuid
from base64 import b64encode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mailslice.bench.clearing import delete_delayed
from mailslice.codec import message
from mailslice.duties.blob_gc import orphans
from mailslice.model.mail import BlobId, EnqueueId, Mail, QueuedMail
from mailslice.model.names import RabbitNames
from mailslice.stores.cassandra.own import DelayedMail
from mailslice.stores.rabbitmq.connection import blocking_connection

GOLDEN = Path(__file__).parents[3] / "golden"
HOURS = timedelta(hours=1)


def sha(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def every_form(first: int) -> list[str]:
    """An id of each form that James writes, without a slash first."""
    hashes = [b64encode(sha(number)).decode() for number in range(first, first + 400)]
    fine = [each for each in hashes if not each.startswith("/") and "//" not in each]
    slashed = next(each for each in fine if "/" in each and "+" in each)
    return [
        str(uuid.uuid4()),
        slashed,
        urlsafe_b64encode(sha(first + 500)).decode(),
        sha(first + 501).hex(),
        f"1_600_{uuid.uuid4()}",
        f"1_601_{fine[-1]}",
        f"9_999999_{urlsafe_b64encode(sha(first + 502)).decode()}",
        f"1/600/{fine[-2][0]}/x{fine[-2][1]}/{fine[-2][2:].replace('/', 'x').replace('=', '')}="[
            :66
        ],
    ]


def minio(text: str) -> str:
    return f"1/602/{text[0]}/{text[1:3]}/{text[3:]}"


def test_a_second_run_deletes_exactly_the_orphans_of_every_form_and_a_third_finds_nothing(heap):
    orphans = {
        heap.blob(key, b"12345")
        for key in [*every_form(0)[:-1], minio(sha(7).hex()), minio(str(uuid.uuid4()))]
    }
    referred = [heap.blob(key) for key in [*every_form(1000)[:-1], minio(sha(8).hex())]]
    for header, body in zip(referred[::2], referred[1::2], strict=True):
        heap.row(header, body)
    unknown = {
        heap.blob(key)
        for key in ("backup/readme.txt", "1_2_readme", "README", f"{uuid.uuid4()}.bak", "1/2/3")
    }
    now = int((datetime.now(UTC) + HOURS).timestamp()) // (30 * 86400)
    active = {heap.blob(f"1_{generation}_{sha(generation).hex()}") for generation in (now, now - 1)}
    first = heap.collect()
    assert (
        first["status"],
        first["orphans"],
        first["orphanBytes"],
        first["candidates"],
        first["gcedBlobCount"],
    ) == ("done", 9, 45, 9, 0)
    assert (first["referenceSourceCount"] >= 6, first["references"], first["blobCount"]) == (
        True,
        8,
        24,
    )
    assert first["unreferenced"] == {
        "unknown": 5,
        "doubtful": 0,
        "active": 2,
        "young": 0,
        "orphan": 9,
    }
    assert {each["key"] for each in first["samples"]["unknown"]} == unknown
    assert {each["key"] for each in first["samples"]["waiting"]} == orphans
    assert (sum(each["blobs"] for each in first["byGeneration"].values()), first["byAge"]) == (
        9,
        {"under 1 day": {"blobs": 9, "bytes": 45}},
    )
    assert heap.keys() == orphans | set(referred) | unknown | active
    second = heap.collect(2 * HOURS)
    assert (
        second["gcedBlobCount"],
        second["candidates"],
        second["errorCount"],
        second["restored"],
        second["planned"],
    ) == (9, 0, 0, 0, 9)
    assert heap.keys() == set(referred) | unknown | active
    assert heap.kept() == orphans
    third = heap.collect(3 * HOURS)
    assert (third["status"], third["orphans"], third["candidates"], third["gcedBlobCount"]) == (
        "nothing to do",
        0,
        0,
        0,
    )


def test_golden_ids_as_james_wrote_them_in_tables_and_bucket_keep_each_other(heap):
    keys = set()
    for case in ("minimal", "deduplication", "generation-aware", "v3-minimal"):
        golden = json.loads((GOLDEN / f"{case}.json").read_text())
        keys |= {heap.blob(golden["s3"][part]["key"]) for part in ("header", "body")}
        heap.row(
            golden["cassandra"]["row"]["headerblobid"]["value"],
            golden["cassandra"]["row"]["bodyblobid"]["value"],
        )
    report = heap.collect(timedelta(days=3650))
    assert (
        report["orphans"],
        report["unreferenced"]["doubtful"],
        report["blobCount"],
        report["references"],
    ) == (0, 0, 8, 8)
    assert heap.keys() == keys


def test_a_reference_in_another_spelling_holds_a_blob_back_and_says_so(heap):
    standard = next(
        text
        for text in (b64encode(sha(number)).decode() for number in range(99))
        if "/" in text[1:] and "+" in text and not text.startswith("/")
    )
    spelled = heap.blob(standard.replace("+", "-").replace("/", "_"))
    aware = heap.blob(f"1_600_{standard.replace('/', 'x')}")
    heap.message(standard, minio(standard.replace("/", "x")).replace("1/602/", "1/600/"))
    report = heap.collect()
    assert (report["orphans"], report["unreferenced"]["doubtful"]) == (0, 2)
    assert "another spelling only (MAILSLICE_BLOB_HASH_ENCODING)" in report["message"]
    assert heap.collect(timedelta(days=30))["gcedBlobCount"] == 0
    assert heap.keys() == {spelled, aware}


def test_every_source_keeps_its_blobs(heap):
    heap.settings = heap.settings.model_copy(
        update={"gc": heap.settings.gc.model_copy(update={"sources": "Extension:avatar,files"})}
    )
    blobs = {heap.blob() for _ in range(15)}
    take = iter(sorted(blobs))
    heap.row(next(take), next(take))
    heap.message(next(take), next(take))
    heap.cql(
        "INSERT INTO {}.attachmentv2 (idasuuid, blobid) VALUES (%s, %s)", uuid.uuid4(), next(take)
    )
    heap.cql(
        "INSERT INTO {}.mailrepositorycontentv2 (urlprefix, mailkey, headerblobid, "
        "bodyblobid) VALUES ('x', 'y', %s, %s)",
        next(take),
        next(take),
    )
    heap.cql(
        "INSERT INTO {}.extension (owner, at, id, avatar, files) VALUES ('o', 0, 'i', %s, %s)",
        next(take),
        {next(take), next(take)},
    )
    delayed = QueuedMail(
        EnqueueId(uuid.uuid4()),
        Mail("m", "a@b.example", ()),
        BlobId(next(take)),
        BlobId(next(take)),
    )
    row = DelayedMail(
        delayed.enqueue_id, datetime.now(UTC), uuid.uuid4(), False, None, message.encode(delayed)
    )
    heap.stores.own.delayed_mails.write_future("spool", row).result()
    header, body = next(take), next(take)
    queue = f"q-{uuid.uuid4().hex[:6]}"
    heap.stores.rabbitmq.declare(queue)
    dead = message.encode(
        QueuedMail(
            EnqueueId(uuid.uuid4()), Mail("m", "a@b.example", ()), BlobId(header), BlobId("x")
        )
    )
    with blocking_connection(heap.settings.rabbitmq) as connection:
        for letter in (dead, f'not a mail, but "{body}" is in it'.encode()):
            connection.channel().basic_publish("", RabbitNames(queue).dead_letter_queue, letter)
        connection.sleep(0.3)
    heap.stores.own_blobs.put(BlobId(f"quarantine/spool/{next(take)}"), b"x")
    orphan = heap.blob()
    second = heap.twice()
    assert (second["orphans"], second["gcedBlobCount"]) == (1, 1)
    assert heap.keys() == blobs
    counted = {each["source"]: each["references"] for each in second["sources"]}
    assert {
        name: counted[name]
        for name in (
            "enqueuedMailsV4",
            "messageV3",
            "attachmentV2",
            "mailRepositoryContentV2",
            "Extension",
            "deadLetters",
        )
    } == {
        "enqueuedMailsV4": 2,
        "messageV3": 2,
        "attachmentV2": 1,
        "mailRepositoryContentV2": 2,
        "Extension": 3,
        "deadLetters": 2,
    }
    assert (counted["own.delayed_mails"], counted["ownBucket"]) == (2, 1)
    assert heap.kept() == {orphan}
    heap.stores.own_blobs.delete_many(
        [blob.key for blob in heap.stores.own_blobs.list("quarantine/")]
    )
    with blocking_connection(heap.settings.rabbitmq) as connection:
        assert (
            connection.channel()
            .queue_delete(RabbitNames(queue).dead_letter_queue)
            .method.message_count
            == 2
        ), "the census took letters away"
    delete_delayed(heap.stores, "spool", delayed.enqueue_id)


def test_a_blob_within_the_grace_is_no_orphan_and_a_candidate_waits_its_time(heap):
    orphan = heap.blob()
    assert heap.collect(grace="2h")["unreferenced"]["young"] == 1
    assert heap.collect(grace="10m")["candidates"] == 1
    early = heap.collect(timedelta(minutes=59))
    assert (early["gcedBlobCount"], early["candidates"]) == (0, 1)
    assert heap.collect(timedelta(minutes=61))["gcedBlobCount"] == 1, (
        "a run in between must not make it wait anew"
    )
    assert heap.kept() == {orphan}


def test_a_dry_run_records_nothing_and_deletes_nothing(heap):
    heap.blob()
    dry = heap.collect(dry_run=True)
    assert (dry["status"], dry["orphans"], dry["candidates"], dry["gcedBlobCount"]) == (
        "dry run",
        1,
        1,
        0,
    )
    assert heap.collect(2 * HOURS)["gcedBlobCount"] == 0, "the dry run had recorded a candidate"
    assert heap.collect(4 * HOURS, dry_run=True)["planned"] == 1
    assert len(heap.keys()) == 1


def test_a_candidate_that_was_written_again_or_referred_to_meanwhile_waits_anew(heap):
    written, referred = heap.blob(content=b"first"), heap.blob()
    heap.collect()
    heap.blob(written, b"another size")
    heap.message(referred, referred)
    second = heap.collect(2 * HOURS)
    assert (second["orphans"], second["candidates"], second["gcedBlobCount"]) == (1, 1, 0)
    heap.cql("TRUNCATE {}.messagev3")
    third = heap.collect(timedelta(hours=2, minutes=30), max_shrink=1)
    assert (third["orphans"], third["candidates"], third["gcedBlobCount"]) == (2, 2, 0), (
        "neither has waited since it was last seen unreferenced"
    )
    assert heap.collect(5 * HOURS)["gcedBlobCount"] == 2


def test_copies_are_kept_for_their_time_and_a_later_run_removes_them(heap):
    heap.blob()
    assert heap.twice(keep="1h")["keptUntil"] is not None
    assert len(heap.kept()) == 1
    assert heap.collect(timedelta(hours=2, minutes=30))["expiredCopies"] == 0
    report = heap.collect(4 * HOURS)
    assert (report["expiredCopies"], heap.kept()) == (1, set())


def test_without_keep_nothing_is_copied(heap):
    heap.blob()
    report = heap.twice(keep="0s")
    assert (report["gcedBlobCount"], report["keptUntil"], heap.kept(), heap.keys()) == (
        1,
        None,
        set(),
        set(),
    )


def test_metadata_that_james_keeps_with_an_object_comes_back_with_it(heap):
    key = str(uuid.uuid4())
    heap.stores.blobs.client.put_object(
        Bucket=heap.settings.s3.bucket,
        Key=key,
        Body=b"zstd",
        Metadata={"content-original-size": "7"},
    )
    heap.twice()
    assert heap.keys() == set()
    heap.message(key, key)
    assert heap.collect(3 * HOURS)["restored"] == 1
    found = heap.stores.blobs.client.get_object(Bucket=heap.settings.s3.bucket, Key=key)
    assert (found["Body"].read(), found["Metadata"]) == (b"zstd", {"content-original-size": "7"})


def test_a_run_deletes_a_thousand_keys_a_request_and_stops_in_time(heap, monkeypatch):
    from mailslice.maintenance.run import Run
    from mailslice.stores.blobs.s3_store import S3BlobStore

    sizes = []
    delete = S3BlobStore.delete_many

    def counted(self, keys):
        sizes.append(len(keys))
        return delete(self, keys)

    monkeypatch.setattr(S3BlobStore, "delete_many", counted)
    monkeypatch.setitem(orphans.GROUP_ROWS, "delete", 2)
    for _ in range(5):
        heap.blob()
    heap.collect()
    monkeypatch.setattr(Run, "out_of_time", lambda _: sum(sizes) >= 4)
    part = heap.collect(2 * HOURS)
    assert (part["gcedBlobCount"], part["left"], [size for size in sizes if size]) == (4, 1, [2, 2])
    assert "1 left to the next run" in part["message"]
    monkeypatch.undo()


def test_the_rest_of_a_run_that_stopped_is_due_at_once(heap, monkeypatch):
    from mailslice.maintenance.run import Run

    heap.blob()
    heap.collect()
    with monkeypatch.context() as patch:
        patch.setattr(Run, "out_of_time", lambda _: True)
        assert heap.collect(2 * HOURS)["left"] == 1
    assert heap.collect(timedelta(hours=2, minutes=5))["gcedBlobCount"] == 1
