"""Blob ids as James writes and reads them."""

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.codec import blob_ids
from mailslice.codec.blob_ids import BlobIds, ParsedBlobId, is_blob_id, is_random
from mailslice.model.settings import BlobIdKind, BlobSettings, BlobStrategy, HashEncoding

GOLDEN = Path(__file__).parents[2] / "golden"
UUID_TEXT = "e2b53fb4-f230-473d-b3e4-54f45c80c05f"
HASH = "uor62xXOdcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM="
HEX = "ba8afadb15ce75ca1df300d8df3e1977d91d5a8cd27bd0b36cbbc0b7e6d48e93"


def golden(case: str) -> dict:
    return json.loads((GOLDEN / f"{case}.json").read_text())


def ids(at: datetime = datetime(2026, 11, 20, tzinfo=UTC), **settings: object) -> BlobIds:
    return BlobIds(BlobSettings(**settings), lambda: at)


@pytest.mark.parametrize("part", ["header", "body"])
@pytest.mark.parametrize(
    ("case", "kind"),
    [("deduplication", BlobIdKind.PLAIN), ("generation-aware", BlobIdKind.GENERATION_AWARE)],
)
def test_deduplication_gives_james_own_ids(case, kind, part):
    blob = golden(case)["s3"][part]
    assert (
        ids(strategy=BlobStrategy.DEDUPLICATION, id=kind).new(base64.b64decode(blob["base64"]))
        == blob["key"]
    )


def test_content_may_be_any_buffer():
    assert blob_ids.content_hash(memoryview(b"xabcx")[1:4]) == blob_ids.content_hash(b"abc")


def test_passthrough_gives_another_random_id_each_time():
    made = {ids().new(b"same") for _ in range(50)}
    assert len(made) == 50
    assert all(str(UUID(blob_id)) == blob_id and blob_ids.is_random(blob_id) for blob_id in made)


def test_generation_aware_passthrough_is_random_too():
    made = ids(id=BlobIdKind.GENERATION_AWARE, family=7).new(b"")
    assert blob_ids.parse(made).family == 7
    assert blob_ids.is_random(made)


@pytest.mark.parametrize(
    ("at", "duration", "generation"),
    [
        (datetime(2026, 11, 20, 20, 59, 14, tzinfo=UTC), timedelta(days=30), 692),
        (datetime(1970, 1, 1, tzinfo=UTC), timedelta(days=30), 0),
        (datetime(1970, 1, 2, tzinfo=UTC) - timedelta(microseconds=1), timedelta(days=1), 0),
        (datetime(1970, 1, 2, tzinfo=UTC), timedelta(days=1), 1),
    ],
)
def test_a_generation_is_the_epoch_seconds_divided_and_floored(at, duration, generation):
    assert ids(at, generation_duration=duration).generation() == generation


@pytest.mark.parametrize(
    ("key", "parsed", "random"),
    [
        (UUID_TEXT, ParsedBlobId(None, None, UUID_TEXT), True),
        (HASH, ParsedBlobId(None, None, HASH), False),
        (HEX, ParsedBlobId(None, None, HEX), False),
        (f"1_692_{HASH}", ParsedBlobId(1, 692, HASH), False),
        (f"1_692_{UUID_TEXT}", ParsedBlobId(1, 692, UUID_TEXT), True),
        ("0_0_x", ParsedBlobId(0, 0, "x"), False),
        ("1/692/e/2b/53fb4-f230-473d-b3e4-54f45c80c05f", ParsedBlobId(1, 692, UUID_TEXT), True),
        (
            "1/6/a/bc/defghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST=",
            ParsedBlobId(1, 6, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST="),
            False,
        ),
        (
            "1/6/a/bc/efghijklmnopqrstuvwxyzABCDEFGHIJKL=",
            ParsedBlobId(None, None, "1/6/a/bc/efghijklmnopqrstuvwxyzABCDEFGHIJKL="),
            False,
        ),
        (UUID_TEXT.upper(), ParsedBlobId(None, None, UUID_TEXT.upper()), False),
        (f"x_692_{UUID_TEXT}", ParsedBlobId(None, None, f"x_692_{UUID_TEXT}"), False),
        (f"_1_{UUID_TEXT}", ParsedBlobId(None, None, f"_1_{UUID_TEXT}"), False),
        ("1_692_", ParsedBlobId(None, None, "1_692_"), False),
        ("1_692", ParsedBlobId(None, None, "1_692"), False),
        (f"{UUID_TEXT}.eml", ParsedBlobId(None, None, f"{UUID_TEXT}.eml"), False),
        ("", ParsedBlobId(None, None, ""), False),
    ],
)
def test_keys_are_parsed_as_james_parses_them(key, parsed, random):
    assert blob_ids.parse(key) == parsed
    assert blob_ids.is_random(key) is random


@given(st.one_of(st.uuids().map(str), st.text("0123456789abcdef-_/x\n")))
def test_an_id_is_random_if_its_last_part_is_a_uuid(key):
    for text in (key, f"1_600_{key}", f"1/600/{key[:1]}/{key[1:3]}/{key[3:]}", f"{key}\n"):
        assert blob_ids.is_random(text) is blob_ids.is_random(f"7_7_{blob_ids.parse(text).hash}")


@given(st.binary(), st.integers(0, 100), st.integers(0, 10**5))
def test_no_id_of_content_is_ever_taken_for_random(content, family, generation):
    plain = blob_ids.content_hash(content)
    assert not blob_ids.is_random(plain)
    assert blob_ids.parse(f"{family}_{generation}_{plain}") == ParsedBlobId(
        family, generation, plain
    )
    url_safe = plain.replace("+", "-").replace("/", "_")
    assert blob_ids.parse(url_safe) == ParsedBlobId(None, None, url_safe)


@pytest.mark.parametrize(
    ("encoding", "spelled"),
    [
        ("base64", "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="),
        ("base64url", "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0="),
    ],
)
def test_the_hash_is_spelled_as_the_setting_says(encoding, spelled):
    assert blob_ids.content_hash(b"abc", HashEncoding(encoding)) == spelled


def test_a_hash_in_hex_is_what_james_3_5_wrote():
    blob = json.loads((GOLDEN / "v3-minimal.json").read_text())["s3"]["header"]
    assert (
        ids(strategy=BlobStrategy.DEDUPLICATION, hash_encoding=HashEncoding.HEX).new(
            base64.b64decode(blob["base64"])
        )
        == blob["key"]
    )


@given(st.binary(max_size=64))
def test_no_hash_makes_a_key_with_an_empty_segment(content):
    key = blob_ids.content_hash(content)
    assert not key.startswith("/")
    assert "//" not in key
    assert (
        base64.b64decode(key, altchars=b"-_" if set(key) & set("-_") else None)
        == hashlib.sha256(content).digest()
    )


def test_a_hash_that_would_begin_with_a_slash_is_spelled_in_base64url():
    found = next(
        str(n).encode()
        for n in range(10_000)
        if base64.b64encode(hashlib.sha256(str(n).encode()).digest()).startswith(b"/")
    )
    assert (
        blob_ids.content_hash(found)
        == base64.urlsafe_b64encode(hashlib.sha256(found).digest()).decode()
    )


@pytest.mark.parametrize(
    "bare", ["0c2a3f5e51ff40e38f4bec489435b214", "uor62xX_dcod8wDY3z4Zd9kdWozSe9CzbLvAt-bUjpM"]
)
def test_an_id_without_dashes_or_padding_counts_behind_a_generation_alone(bare):
    assert is_blob_id(f"1_600_{bare}")
    assert not is_blob_id(bare)
    assert not is_random(f"1_600_{bare}")


@pytest.mark.parametrize(
    "key", ["2024_11_report.pdf", "1_600_", "1_600_notes", "backup/2024_11_x", "1_600_" + "a" * 44]
)
def test_other_names_are_no_blob_ids(key):
    assert not is_blob_id(key)
