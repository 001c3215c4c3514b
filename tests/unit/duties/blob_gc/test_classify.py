"""Which unreferenced blobs are orphans, and when a candidate is due.

Ids of every strategy, as golden files and the codec make them.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailslice.codec.blob_ids import BlobIds, is_blob_id
from mailslice.duties.blob_gc import orphans
from mailslice.duties.blob_gc.orphans import Rules, Tally, modified_seconds
from mailslice.engine.dataset import normalized
from mailslice.model.settings import BlobIdKind, BlobSettings, BlobStrategy, HashEncoding

GOLDEN = Path(__file__).parents[3] / "golden"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RULES = Rules(NOW, timedelta(hours=1), timedelta(hours=24), family=1, generation=692)
OLD = int(NOW.timestamp()) - 7200
UUID_TEXT = "e2b53fb4-f230-473d-b3e4-54f45c80c05f"
HASH = "uor62xXOdcod8wDY3z4Zd9kdWozSe9CzbLvAt+bUjpM="
EVERY_SETTING = [
    {"strategy": strategy, "id": kind, "hash_encoding": encoding}
    for strategy in BlobStrategy
    for kind in BlobIdKind
    for encoding in HashEncoding
]


@pytest.mark.parametrize(
    "case", sorted(path.stem for path in GOLDEN.glob("*.json") if '"s3"' in path.read_text())
)
def test_every_key_that_a_real_james_wrote_is_a_blob_id(case):
    found = json.loads((GOLDEN / f"{case}.json").read_text())["s3"]
    assert all(is_blob_id(found[part]["key"]) for part in ("header", "body"))


@pytest.mark.parametrize("setting", EVERY_SETTING)
@settings(max_examples=20)
@given(content=st.binary(max_size=40))
def test_every_id_that_mailslice_makes_is_a_blob_id(setting, content):
    assert is_blob_id(BlobIds(BlobSettings(**setting), lambda: NOW).new(content))


@pytest.mark.parametrize(
    "key",
    [
        UUID_TEXT,
        HASH,
        HASH.replace("+", "-"),
        "BA8AFADB15CE75CA1DF300D8DF3E1977D91D5A8CD27BD0B36CBBC0B7E6D48E93",
        "ba8afadb15ce75ca1df300d8df3e1977d91d5a8cd27bd0b36cbbc0b7e6d48e93",
        "A" * 52 + "====",
        f"1_1_{HASH}",
        f"1_1_{UUID_TEXT}",
        f"0_0_{UUID_TEXT}",
        "1/1/e/2b/53fb4-f230-473d-b3e4-54f45c80c05f",
    ],
)
def test_ids_of_all_forms_are_blob_ids(key):
    assert RULES.kind(key, OLD, doubtful=False) == orphans.ORPHAN


@pytest.mark.parametrize(
    "key",
    [
        "",
        "backup/readme.txt",
        "1_1_readme.txt",
        "1_1_",
        f"{UUID_TEXT}.eml",
        f" {UUID_TEXT}",
        f"{UUID_TEXT}\n",
        UUID_TEXT.upper(),
        f"kept/20261121T000000Z/r/{UUID_TEXT}",
        HASH[:-1],
        HASH + "=",
        "1/1/e/2b/readme",
        f"recovered/{HASH}",
        f"_1_{UUID_TEXT}",
        "x" * 64,
    ],
)
def test_what_is_no_blob_id_is_unknown_however_old(key):
    assert RULES.kind(key, 0, doubtful=False) == orphans.UNKNOWN


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [
        ("1_693_", "active"),
        ("1_692_", "active"),
        ("1_691_", "active"),
        ("1_690_", "orphan"),
        ("2_692_", "orphan"),
        ("1_99999_", "active"),
        ("", "orphan"),
    ],
)
def test_ids_of_the_present_and_the_last_generation_of_this_family_are_active(prefix, kind):
    assert RULES.kind(prefix + HASH, OLD, doubtful=False) == kind
    assert RULES.kind(prefix + UUID_TEXT, OLD, doubtful=False) == kind


@pytest.mark.parametrize(
    ("age", "kind"),
    [(-60, "young"), (0, "young"), (3600, "young"), (3601, "young"), (3602, "orphan")],
)
def test_a_blob_within_the_grace_is_young_and_whole_seconds_count_for_it(age, kind):
    assert RULES.kind(HASH, int(NOW.timestamp()) - age, doubtful=False) == kind


def test_a_blob_that_a_reference_may_mean_is_left():
    assert RULES.kind(HASH, OLD, doubtful=True) == orphans.DOUBTFUL


@pytest.mark.parametrize(
    ("since", "due"),
    [
        (None, False),
        (timedelta(hours=23, minutes=59), False),
        (timedelta(hours=24), True),
        (timedelta(0), False),
    ],
)
def test_a_candidate_is_due_when_it_has_waited_long_enough(since, due):
    assert RULES.due(None if since is None else round((NOW - since).timestamp() * 1000)) is due


def test_spellings_of_one_id_are_alike_and_different_ids_are_not():
    url, minio = HASH.replace("+", "-").replace("/", "_"), f"1/692/{HASH[0]}/{HASH[1:3]}/{HASH[3:]}"
    assert normalized(HASH) == normalized(url)
    assert normalized(f"1_692_{HASH}") == normalized(minio) == normalized(f"1_692_{url}")
    assert (
        len(
            {
                normalized(key)
                for key in (HASH, f"1_692_{HASH}", f"1_691_{HASH}", UUID_TEXT, HASH.swapcase())
            }
        )
        == 5
    )


def test_tallies_of_parts_add_up_and_invented_generations_fill_no_report():
    parts = []
    for first in (0, 1500):
        tally = Tally()
        for number in range(first, first + 1500):
            tally.add("orphan", f"7_{number}_{HASH}", 10, OLD, RULES)
            tally.show("planned", key=number)
        parts.append(tally.as_json())
    whole = Tally()
    for part in parts:
        whole.merge(json.loads(json.dumps(part)))
    assert (whole.blobs["orphan"], whole.size["orphan"]) == (3000, 30_000)
    assert sum(blobs for blobs, _ in whole.generations.values()) == 3000
    assert len(whole.generations) <= 1001
    assert [each["key"] for each in whole.samples["planned"]] == list(range(20))
    assert whole.ages == {"under 1 day": [3000, 30_000]}


def test_modified_times_are_floored_to_seconds():
    assert modified_seconds(datetime(2026, 1, 1, 0, 0, 0, 999_999, UTC)) == modified_seconds(
        datetime(2026, 1, 1, tzinfo=UTC)
    )
