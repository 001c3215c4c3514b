"""What counts as a reference: the setting's grammar; ids inside messages, JSON and other text."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mailslice.duties.blob_gc import sources
from mailslice.duties.blob_gc.sources import (
    _endings,
    buried_ids,
    parse_sources,
    sources_of,
    unread_columns,
)
from mailslice.model.errors import BadSetting, Refused
from mailslice.model.settings import Settings
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.cassandra.references import Column

GOLDEN = Path(__file__).parents[3] / "golden"
UUID_TEXT = "e2b53fb4-f230-473d-b3e4-54f45c80c05f"
HASH = "uor62xXO/coddwDY3z4Zd9kdWozSe9CzbLvAt+bUjpM="


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("  ", []),
        ("avatars:blobid", [("", "avatars", ("blobid",))]),
        ("avatars:small,large", [("", "avatars", ("small", "large"))]),
        ("avatars:small+large", [("", "avatars", ("small", "large"))]),
        ("avatars:small:large", [("", "avatars", ("small", "large"))]),
        ("a:b;Other.c:d,e", [("", "a", ("b",)), ("other", "c", ("d", "e"))]),
        ("a:b,c:d", [("", "a", ("b",)), ("", "c", ("d",))]),
        (" a:b ; \n c:d ", [("", "a", ("b",)), ("", "c", ("d",))]),
    ],
)
def test_more_sources_are_tables_with_columns(text, found):
    assert parse_sources(text) == found


@pytest.mark.parametrize(
    "text", ["blobid", "avatars:", ":blobid", "ks.:blobid", "a:b;:c", "a:;c:d"]
)
def test_a_source_without_table_or_column_names_itself(text):
    with pytest.raises(BadSetting, match="MAILSLICE_GC_SOURCES="):
        parse_sources(text)


@pytest.mark.parametrize(
    "case", ["minimal", "full", "deduplication", "generation-aware", "v3-minimal"]
)
def test_both_blobs_of_a_message_of_james_are_found_in_it(case):
    golden = json.loads((GOLDEN / f"{case}.json").read_text())
    assert set(buried_ids(golden["amqp"]["body_text"].encode())) == {
        golden["s3"]["header"]["key"],
        golden["s3"]["body"]["key"],
    }


@pytest.mark.parametrize(
    "value",
    [
        UUID_TEXT,
        UUID_TEXT.encode(),
        json.dumps({"deep": [{"er": UUID_TEXT}]}),
        json.dumps({UUID_TEXT: 1}),
        f'{{"headerBlobId":"{UUID_TEXT}", cut off',
        f'{{"a":"\\"","headerBlobId":"{UUID_TEXT}"'.encode() + b"\xff\xfe",
        f'["{UUID_TEXT}"',
    ],
)
def test_an_id_is_found_in_what_is_no_mail_any_more(value):
    assert set(buried_ids(value)) == {UUID_TEXT}


def test_escaped_slashes_and_equal_signs_spell_the_same_id():
    escaped = HASH.replace("/", "\\/").replace("=", "\\u003d").replace("+", "\\u002B")
    assert set(buried_ids(f'{{"bodyBlobId":"{escaped}"}}')) == {HASH}
    assert set(buried_ids(f'{{"bodyBlobId":"{escaped}" and no end')) == {HASH}


@pytest.mark.parametrize("value", ["", "{}", "null", "7", b"\x00\xff", '{"a": 1}', "[" * 100_000])
def test_what_names_no_blob_gives_none(value):
    assert list(buried_ids(value)) == []


def test_a_key_of_the_own_bucket_may_end_with_an_id_that_has_slashes():
    assert HASH in set(_endings(f"quarantine/spool/x/{HASH}"))
    assert UUID_TEXT in set(_endings(UUID_TEXT))


def column(name, kind="text", position=-1):
    return Column(name, kind, position)


@pytest.fixture
def stores(monkeypatch):
    """James' keyspace with two of its tables and an extension's, and mailslice's own."""
    key = column("id", "uuid", 0)
    james = {
        "messagev3": (key, column("headercontent"), column("bodycontent")),
        "attachmentv2": (key, column("blobid")),
        "Files": (key, column("Avatar"), column("more", "set<text>"), column("at", "timestamp")),
        "avatars": (key, column("blobid"), column("header_blob_id")),
        "uploads": (key, column("bucket"), column("blobid")),
    }
    own = {"delayed_mails": (key, column("item", "blob")), "runs": (key, column("report"))}
    keyspaces = {"apache_james": james, "mailslice": own}
    monkeypatch.setattr(sources, "columns_of", lambda _, keyspace: keyspaces.get(keyspace, {}))
    monkeypatch.setattr(sources, "estimated_sizes", lambda *_: SIZES)
    monkeypatch.setattr(sources, "token_ranges", lambda _, least: [(0, 0)] * max(1, least))
    monkeypatch.setattr(S3BlobStore, "bucket_exists", lambda _: False)

    def made(**gc):
        settings = Settings()
        settings = settings.model_copy(update={"gc": settings.gc.model_copy(update=gc)})
        management = SimpleNamespace(dead_letter_queues=lambda: ["spool"])
        session = SimpleNamespace(address="here")
        return SimpleNamespace(settings=settings, cassandra=session, management=management)

    return made


SIZES = {"messagev3": (10**6, 10**8), "attachmentv2": (9, 9), "Files": (10, 10**9)}
"""(partitions, bytes)."""
ABSENT = ("enqueuedmailsv3", "enqueuedmailsv4", "mailRepositoryContentV2")


def test_sources_are_the_letters_our_own_james_tables_and_the_operators(stores):
    given = "Files:Avatar;Files:MORE;MessageV3:headerContent"
    found, absent = sources_of(stores(absent_sources=ABSENT, sources=given))
    assert [source.name for source in found] == [
        "deadLetters",
        "ownBucket",
        "own.delayed_mails",
        "messageV3",
        "attachmentV2",
        "Files",
    ]
    assert absent == ["mailRepositoryContentV2", "enqueuedMailsV3", "enqueuedMailsV4"]
    own, messages, attachments, files = found[2:]
    assert messages.where.columns == ("headercontent", "bodycontent")
    assert (files.where.table, files.where.columns) == ("Files", ("Avatar", "more"))
    assert [(source.plain, source.buried) for source in (own, messages, files)] == [
        (False, True),
        (True, False),
        (False, False),
    ]
    assert [each.parts for each in (own, messages, attachments, files)] == [8, 40, 1, 59]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("nothere:blobid", Refused, "no table for nothere in Cassandra at here.*,nothere$"),
        ("ks.avatars:blobid", Refused, r"no table for ks\.avatars "),
        ("Files:at", BadSetting, r"column at of Files is of type timestamp.*MAILSLICE_GC_SOURCES"),
        ("Files:x", BadSetting, "column x of Files does not exist; there are Avatar, at, id, more"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(stores, given, error, said):
    with pytest.raises(error, match=said):
        sources_of(stores(absent_sources=ABSENT, sources=given))


def test_columns_like_blob_ids_that_no_source_reads_are_named_unless_excused(stores):
    without = stores(absent_sources=ABSENT)
    found, _ = sources_of(without)
    assert unread_columns(without, found) == ["avatars.blobid", "avatars.header_blob_id"]
    excused = stores(absent_sources=ABSENT, unread_columns=("Avatars.header_blob_id",))
    assert unread_columns(excused, found) == ["avatars.blobid"]
    more = stores(absent_sources=ABSENT, sources="avatars:blobid")
    assert unread_columns(more, sources_of(more)[0]) == ["avatars.header_blob_id"]
