"""Key ranges that cover every key once, requested by prefix.

No more keys are requested than one page or a few.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailslice.duties.blob_gc.listing import key_ranges
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.key_ranges import behind, inside, prefix_of, uncovered
from mailslice.stores.blobs.s3_store import S3BlobStore

keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
UUID_TEXT = "e2b53fb4-f230-473d-b3e4-54f45c80c05f"


@dataclass
class Server:
    """ListObjectsV2 over some names, in pages of `most`.

    Counts how many objects each request examines, as a server that keeps files does.
    """

    names: list[str]
    most: int

    def list_objects_v2(
        self,
        Bucket,  # noqa: N803 - S3's words
        MaxKeys,  # noqa: N803
        Prefix="",  # noqa: N803
        StartAfter="",  # noqa: N803
        ContinuationToken="",  # noqa: N803
    ):
        self.looks.append(len(begun := [name for name in self.names if name.startswith(Prefix)]))
        found = [
            name for name in begun if name.encode() > (ContinuationToken or StartAfter).encode()
        ]
        page = found[: min(MaxKeys, self.most)]
        more = (
            {"IsTruncated": True, "NextContinuationToken": page[-1]}
            if len(found) > len(page)
            else {"IsTruncated": False}
        )
        return {
            "Contents": [{"Key": name, "Size": 1, "LastModified": None} for name in page],
            **more,
        }

    def __post_init__(self):
        self.names = sorted(self.names, key=str.encode)
        self.looks: list[int] = []


def bucket(names, most=2):
    blobs = S3BlobStore(S3Settings(), "james")
    blobs.__dict__["client"] = Server(list(names), most)
    return blobs


def listed(blobs, ranges):
    return sorted(
        each.key for low, high in ranges for page in blobs.pages(low, high) for each in page
    )


@settings(max_examples=100)
@given(
    st.sets(
        st.one_of(
            keys,
            st.builds(
                "{}{}{}{}{}".format,
                st.integers(0, 2),
                m := st.sampled_from("_/"),
                st.integers(0, 12),
                m,
                keys,
            ),
            st.just(UUID_TEXT),
        )
    )
)
def test_every_key_is_in_exactly_one_range(names):
    blobs = bucket(names)
    ranges = key_ranges(blobs)
    assert uncovered(ranges) == 0
    assert listed(blobs, ranges) == sorted(names)


@given(keys, keys, st.lists(keys))
def test_a_range_has_a_prefix_that_all_its_keys_begin_with(one, other, names):
    low, high = sorted([one, other])
    within = [
        name for name in [*names, one, low + "x", high[:-1]] if name and inside(name, low, high)
    ]
    assert all(name.startswith(prefix_of(low, high)) for name in within)
    assert prefix_of(low, behind(low)) == low


@given(keys, st.lists(keys))
def test_all_that_begins_with_a_prefix_lies_before_what_is_behind_it(prefix, names):
    assert all(
        inside(name, prefix, behind(prefix)) == name.startswith(prefix)
        for name in [*names, prefix, prefix + "\U0010ffff\U0010ffff"]
    )


def test_the_ends_of_the_characters():
    assert (behind("a"), behind("a\ud7ff"), behind("a\U0010ffff"), behind("\U0010ffff")) == (
        "b",
        "a\ue000",
        "b",
        "",
    )
    names = ["a", "a\0", "a\ud7ff", "a\ue000", "b"]
    for low in names:
        assert listed(bucket(names), [(low, "")]) == [name for name in names if name >= low]


def generations(count, each):
    return [
        f"1_{600 + number % count}_{uuid.UUID(int=number * 2**128 // (count * each))}"
        for number in range(count * each)
    ]


@pytest.mark.parametrize(
    ("names", "most"),
    [
        (generations(8, 4000), 120),
        ([name.replace("_", "/") for name in generations(3, 4000)], 100),
        ([str(uuid.UUID(int=number * 2**128 // 20_000)) for number in range(20_000)], 400),
    ],
)
def test_many_keys_are_cut_so_that_a_server_that_walks_looks_into_few_objects(names, most):
    names = [
        f"{name[:6]}{name[6]}/{name[7:9]}/{name[9:]}" if name.startswith("1/") else name
        for name in names
    ]
    blobs = bucket(names, 1000)
    ranges = key_ranges(blobs)
    assert len(ranges) < most * 1.5
    blobs.client.looks.clear()
    assert listed(blobs, ranges) == sorted(names)
    assert len(blobs.client.looks) < len(ranges) + 3 * len(names) / 1000 + 10
    assert sum(blobs.client.looks) < 20 * len(names), (
        "page after page of the whole bucket would be a hundred times this"
    )


def test_numbers_between_generations_and_keys_that_only_look_like_them_hide_none():
    names = [
        "1_",
        "1_0600_x",
        "1_6",
        "1_600",
        "1_6000_a",
        "1_backup",
        "10aa",
        "1aaa",
        "9999",
        *generations(12, 30),
    ]
    blobs = bucket(names, 10)
    ranges = key_ranges(blobs)
    assert listed(blobs, ranges) == sorted(names)
    assert {low for low, _ in ranges} >= {"1_600", "1_601", "1_610", "1_611", "1_612"}


def test_ranges_that_leave_keys_out_or_list_them_twice_are_seen():
    assert uncovered([("", "")]) == 0
    assert uncovered([("", "a"), ("a", "b"), ("b", "")]) == 0
    assert uncovered([("", "a"), ("b", "")]) == 1
    assert uncovered([("", "a"), ("a", "b")]) == 1
    assert uncovered([("", "b"), ("a", "")]) == 1


def test_one_key_of_a_range_is_found_by_one_request_of_one_key():
    blobs = bucket(["a", "kept/x", "kept/y", "z"])
    assert [
        blobs.first(*each)
        for each in (("kept/", "kept0"), ("kept/x\0", "kept0"), ("kept/z", "kept0"), ("kept0", ""))
    ] == ["kept/x", "kept/y", None, "z"]
