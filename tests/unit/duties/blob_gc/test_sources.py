"""What counts as a reference: the setting's grammar, and ids inside of messages, JSON and whatever is neither."""

import json
from pathlib import Path

import pytest

from mailslice.duties.blob_gc.sources import _endings, buried_ids, parse_sources
from mailslice.model.errors import BadSetting

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
