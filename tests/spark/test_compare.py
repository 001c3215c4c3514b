"""A plan beside the view: row groups and pages end where they like, rows went, rows came."""

import uuid

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mailslice.engine.id_arrays import of_packed
from mailslice.engine.plan_comparison import PartitionNow, PlanKey
from mailslice.engine.row_files import PlanReader, PlanWriter
from mailslice.maintenance.artifacts import Artifacts
from mailslice.model.settings import S3Settings
from mailslice.stores.cassandra.ids import pack


class NoMarks:
    """Every id with an odd first byte is marked."""

    def of(self, ids):
        return (ids[:, 0] & 1).astype(np.bool_)


def cut(draw, items):
    """The items in parts of a few; a part may be empty, as a page may be."""
    parts, rest = [], list(items)
    while rest:
        count = draw(st.integers(0, 4))
        parts.append(rest[:count])
        rest = rest[count:]
    return parts


@st.composite
def partitions(draw):
    """(row groups of the plan, pages of the view), both in one order, of ids of which some are
    planned, some are there.
    """
    ids = [
        uuid.UUID(int=each)
        for each in draw(st.lists(st.integers(0, 2**128 - 1), unique=True, max_size=16))
    ]
    planned = [each for each in ids if draw(st.integers(0, 4))]
    there = [each for each in ids if draw(st.integers(0, 3))]
    return [group for group in cut(draw, planned) if group], cut(draw, there)


@settings(deadline=None, max_examples=60)
@given(partitions())
def test_what_is_planned_is_found_and_the_plan_is_read_to_its_end(tmp_path_factory, partition):
    groups, pages = partition
    folder = tmp_path_factory.mktemp("plan")
    location = Artifacts(str(folder.parent), S3Settings())
    writer = PlanWriter(location, folder.name)
    part, digest = writer.add(
        "v4",
        1000,
        0,
        ((of_packed(pack(group)), np.arange(len(group), dtype=np.int64)) for group in groups),
    )
    writer.close()
    planned, there = (
        [each for group in groups for each in group],
        [each for page in pages for each in page],
    )
    found = set(planned) & set(there)
    with PlanReader(location, folder.name) as reader:
        key = PlanKey("v4", 1000, 0, part)
        before = PartitionNow.of(key, map(pack, pages), NoMarks(), reader)
    live = [each for each in there if not each.bytes[0] & 1]
    assert before == PartitionNow(
        *key.name,
        rows=len(there),
        matched=len(found),
        foreign=len(there) - len(found),
        unmarked=len(live),
        unmarked_planned=len([each for each in live if each in found]),
        digest=digest,
    )
