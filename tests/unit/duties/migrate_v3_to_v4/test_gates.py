"""What the gate before a migration stops, by the plan's own files."""

import uuid
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from mailslice.duties.migrate_v3_to_v4 import check
from mailslice.duties.migrate_v3_to_v4.plan_file import Plan, PlannedPlace
from mailslice.spark.ids import of_packed
from mailslice.spark.plan_files import PlanWriter
from mailslice.stores.cassandra.ids import pack
from tests.unit.duties.judging import NOW, broken, context_of, rewritten

FILE = "plan/part.parquet"


@pytest.fixture
def context(tmp_path):
    return context_of(tmp_path, "migrate_v3_to_v4")


@pytest.fixture
def plan(context):
    place = context.folder.artifacts
    writer = PlanWriter(place, context.folder.file("plan"), "part.parquet")
    ids = of_packed(pack(uuid.uuid4() for _ in range(3)))
    part, digest = writer.add("v3", 0, 0, [(ids, np.full(3, 5, np.int64))], "live")
    writer.close()
    return Plan("r-1", "spool", NOW, digest, (PlannedPlace(0, 0, 3, part),), 1, 1, 0)


def test_a_plan_of_rows_of_v3_passes(context, plan):
    assert broken(check.totals(plan, NOW), check.rows(context, plan)) == set()


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        (lambda rows: rows[:2], {"rows"}),
        (lambda rows: [rows[0], rows[0], rows[1]], {"slice_start, bucket, enqueue_id"}),
        (lambda rows: [{**row, "table": "v4"} for row in rows], {"table"}),
        (lambda rows: [{**row, "written_us": 0} for row in rows], {"written_us"}),
        (lambda rows: [{**rows[0], "written_us": None}, *rows[1:]], {"written_us"}),
    ],
)
def test_each_rule_fails_by_rows_of_the_plans_files(context, plan, change, columns):
    rewritten(context.folder.artifacts.path(context.folder.file(FILE)), change)
    assert broken(check.rows(context, plan)) == columns


def test_a_partition_that_was_not_read_or_twice_and_an_old_plan_fail(plan):
    assert broken(check.totals(replace(plan, read=0), NOW)) == {"places_read"}
    assert broken(check.totals(replace(plan, read_twice=1), NOW)) == {"places_read_twice"}
    assert broken(check.totals(plan, NOW + timedelta(hours=25))) == {"age_hours"}


def test_what_was_read_is_inside_the_digest(plan):
    assert len({plan.digest, replace(plan, read=0).digest, replace(plan, to_read=2).digest}) == 3
