"""Decoded packed rows, and the digest of a set of messages: any change shows, the order not."""

import random
import struct
from types import SimpleNamespace
from uuid import UUID, uuid1, uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailslice.duties.counter_repair import scan_task
from mailslice.duties.counter_repair.fingerprints import (
    MessageDigest,
    layout_of,
    message_digest,
    messages_of,
    without_id,
)
from mailslice.duties.counter_repair.scan_task import RANGE, Chunk, Groups, ScanSpec
from mailslice.engine.page_decoder import decode
from mailslice.maintenance.row_file import read_tables
from mailslice.stores.cassandra.mailboxes import FLAGS, USER_FLAGS
from mailslice.stores.cassandra.packed import PackedPage
from tests.unit.duties.judging import run_of

COLUMNS = ("messageid", "mailboxid", "uid", "modseq", *FLAGS, USER_FLAGS)
LAYOUT = layout_of(COLUMNS)


def cell(value):
    """A value as the native protocol has it."""
    if value is None:
        return struct.pack(">i", -1)
    data = (
        value.bytes
        if isinstance(value, UUID)
        else bytes([value])
        if isinstance(value, bool)
        else struct.pack(">q", value)
        if isinstance(value, int)
        else value
    )
    return struct.pack(">i", len(data)) + data


def row(message, mailbox, uid, modseq=1, flags=(), user_flags=None):
    return (message, mailbox, uid, modseq, *(name in flags for name in FLAGS), user_flags)


def page(rows):
    return PackedPage(len(rows), b"".join(cell(value) for values in rows for value in values))


def seen(rows):
    return message_digest(decode(page(rows), LAYOUT), FLAGS)


def some_rows(count, mailbox=None):
    return [
        row(
            uuid1(clock_seq=at),
            mailbox or uuid1(clock_seq=at % 7),
            at,
            100 + at,
            ("flagseen",) if at % 3 else (),
        )
        for at in range(count)
    ]


def test_an_even_page_is_decoded_column_by_column():
    rows = some_rows(50)
    columns = decode(page(rows), LAYOUT)
    assert [
        UUID(int=(int(high) << 64) | int(low))
        for high, low in zip(columns["messageid.high"], columns["messageid.low"], strict=True)
    ] == [r[0] for r in rows]
    assert columns["uid"].tolist() == [r[2] for r in rows]
    assert columns["flagseen"].tolist() == [int(r[4 + FLAGS.index("flagseen")]) for r in rows]
    assert columns[USER_FLAGS].tolist() == [0] * 50


def test_user_flags_make_rows_uneven_and_change_nothing_else():
    rows = some_rows(5)
    flagged = [*rows[:2], (*rows[2][:-1], b"\0\0\0\1\0\0\0\1x"), (*rows[3][:-1], b""), rows[4]]
    columns = decode(page(flagged), LAYOUT)
    assert columns["uid"].tolist() == [0, 1, 2, 3, 4]
    assert [value != 0 for value in columns[USER_FLAGS].tolist()] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert seen(flagged) != seen(rows)
    assert seen([*rows[:3], (*rows[3][:-1], b""), rows[4]]) == seen(rows)


def test_nulls_among_the_fixed_columns_are_zeros():
    rows = [list(each) for each in some_rows(3)]
    rows[1][4 + FLAGS.index("flagseen")] = None
    rows[2][3] = None
    columns = decode(page(rows), LAYOUT)
    assert columns["flagseen"].tolist() == [0, 0, 1]
    assert columns["modseq"].tolist() == [100, 101, 0]
    assert columns["uid"].tolist() == [0, 1, 2]


def test_a_null_that_a_longer_last_value_makes_up_for_is_not_taken_for_an_even_page():
    rows = [list(each) for each in some_rows(2)]
    rows[0][3], rows[0][-1] = None, b"12345678"
    columns = decode(page(rows), LAYOUT)
    assert columns["modseq"].tolist() == [0, 101]
    assert [value != 0 for value in columns[USER_FLAGS].tolist()] == [True, False]


def test_an_empty_page_has_empty_columns():
    assert seen([]) == MessageDigest()
    assert decode(PackedPage(0, b""), LAYOUT)["uid"].tolist() == []


@pytest.mark.parametrize("data", [b"\0\0\0\1", b"\0" * 500])
def test_bytes_that_are_no_such_rows_are_refused(data):
    with pytest.raises(ValueError, match="bytes"):
        decode(PackedPage(2, data), LAYOUT)


def test_what_a_mailbox_looks_like():
    messages = [uuid1(clock_seq=at) for at in range(3)]
    mailbox = uuid1()
    found = seen(
        [
            row(messages[0], mailbox, 1, 5, ("flagseen",)),
            row(messages[1], mailbox, 2, 9),
            row(messages[2], mailbox, 3, 7),
        ]
    )
    assert (found.count, found.unseen, found.modseq, found.newest) == (
        3,
        2,
        9,
        max(each.time for each in messages),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_neither_order_nor_parts_change_the_looks_and_any_changed_row_does(count, chance):
    rows = some_rows(count, uuid1())
    whole = seen(rows)
    shuffled = random.Random(chance.random()).sample(rows, count)
    cut = chance.randrange(count + 1)
    assert seen(shuffled[:cut]) + seen(shuffled[cut:]) == whole
    at = chance.randrange(count)
    changed = list(rows[at])
    column = chance.choice([0, 2, 3, *range(4, 4 + len(FLAGS)), 4 + len(FLAGS)])
    changed[column] = {
        0: uuid1(clock_seq=99),
        2: changed[2] + 1000,
        3: changed[3] + 1,
        4 + len(FLAGS): b"z",
    }.get(column, changed[column] is False)
    other = seen([*rows[:at], tuple(changed), *rows[at + 1 :]])
    assert (other.first, other.second) != (whole.first, whole.second)
    assert other.first != whole.first
    assert other.second != whole.second


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_grouping_gives_every_mailbox_once_with_its_rows(of):
    mailboxes = [uuid4() for _ in range(6)]
    chunk = Chunk()
    for first in range(0, len(of), 7):
        chunk.add(
            decode(
                page(
                    [
                        row(uuid1(), mailboxes[each], at)
                        for at, each in enumerate(of[first : first + 7])
                    ]
                ),
                LAYOUT,
            )
        )
    assert chunk.rows == len(of)
    groups = Groups(chunk.take())
    counts = groups.reduced(np.add, np.ones(len(of), np.int64))
    assert {
        UUID(bytes=key): count for key, count in zip(groups.keys, counts.tolist(), strict=True)
    } == {mailboxes[each]: of.count(each) for each in set(of)}
    assert chunk.rows == 0


def test_rows_without_a_message_id_are_no_messages():
    """Flags that were written after the row's deletion are all that is left of them."""
    mailbox = uuid1()
    rows = some_rows(5, mailbox)
    late = row(None, mailbox, 77, 900, ("flagflagged",))
    assert seen([late]) == MessageDigest()
    assert seen([*rows, late]) == seen(rows)
    assert without_id(decode(page([late, *rows, late]), LAYOUT)).tolist() == [
        True,
        *([False] * 5),
        True,
    ]
    kept = messages_of(decode(page([late, *rows]), LAYOUT))
    assert {len(values) for values in kept.values()} == {5}


MAILBOX = uuid1()


@pytest.mark.parametrize(
    ("only", "written"), [(None, 6), (frozenset(), 0), (frozenset({MAILBOX.bytes}), 5)]
)
def test_a_range_counts_all_rows_and_the_truth_of_the_mailboxes_asked_for_is_written(
    only, written, tmp_path, monkeypatch
):
    """The gate holds the truth against them: it has no row without a message id."""
    rows = [*some_rows(5, MAILBOX), *some_rows(1)]
    late = [row(None, uuid1(), 77, 900, ("flagflagged",)) for _ in range(20)]
    folder = run_of(tmp_path, "counter_repair").folder
    folder.artifacts.folder(folder.file("plan"))
    scan = ScanSpec(None, folder.artifacts, folder.name, only)
    pages = {
        "messageidtable": [page([*late, *rows[:3]]), page([*rows[3:], *late])],
        "imapuidtable": [page(rows)],
    }

    def pages_of(table, ranges, _):
        return ((ranges[0], each) for each in pages[table])

    stores = SimpleNamespace(
        mailboxes=SimpleNamespace(message_columns=COLUMNS, flags=FLAGS, scan=lambda table: table),
        cassandra=SimpleNamespace(packed=SimpleNamespace(pages=pages_of)),
    )
    monkeypatch.setattr(scan_task, "stores_of", lambda _: stores)
    told = [
        each
        for batch in scan_task.read(scan, iter([[(table, 3, 9) for table in pages]]))
        for each in batch.to_pylist()
    ]
    ranges = {
        each["kind"]: (RANGE.unpack(each["key"]), each["rows"], each["reads"])
        for each in told
        if each["kind"] not in {scan_task.OF_MAILBOX, scan_task.OF_FILE}
    }
    assert ranges == {"messageidtable": ((3, 9), 6, 1), "imapuidtable": ((3, 9), 6, 1)}
    files = [scan_task.file_of(each["key"]) for each in told if each["kind"] == scan_task.OF_FILE]
    assert sum(file.rows for file in files) == written
    uids = [
        uid
        for file in files
        for table in read_tables(folder.artifacts, folder.name, file)
        for uid in table["uid"].to_pylist()
    ]
    every = decode(page(rows), LAYOUT)["uid"].tolist()
    assert sorted(uids) == sorted({0: [], 5: every[:5], 6: every}[written])
