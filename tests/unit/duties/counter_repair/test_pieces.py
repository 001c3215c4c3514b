"""Params, token ranges, the plot, the gate over a plan, the one update, items beside each other."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from cassandra.policies import FallthroughRetryPolicy
from hypothesis import given
from hypothesis import strategies as st

from mailslice.duties.counter_repair.check import differences, totals
from mailslice.duties.counter_repair.check import drifts as drifts_of
from mailslice.duties.counter_repair.fingerprints import Seen
from mailslice.duties.counter_repair.parallel import beside_each_other
from mailslice.duties.counter_repair.params import Params
from mailslice.duties.counter_repair.plan_file import (
    Drift,
    Plan,
    ScanFacts,
    difference_schema,
    drift_schema,
)
from mailslice.duties.counter_repair.plot import LABELS, drifts_svg, histogram
from mailslice.duties.counter_repair.rows_file import PARTS, RowsWriter, table_of
from mailslice.duty.artifacts import Artifacts, RunFolder
from mailslice.duty.gates import judged
from mailslice.duty.request import NO_QUEUE
from mailslice.model.errors import BadInput, GateFailed, Refused
from mailslice.model.settings import CassandraSettings, S3Settings
from mailslice.quality import gate
from mailslice.spark.frames import InProcess
from mailslice.stores.cassandra.mailboxes import Counters, MailboxTables
from mailslice.stores.cassandra.ranges import HIGHEST, LOWEST, holes, token_ranges

AN_ID = "5f1c0e50-c6f9-11f0-8de9-0242ac120002"


@pytest.mark.parametrize("given", [f"{AN_ID}, {AN_ID.upper()}", [AN_ID, f" {AN_ID},"], (AN_ID,)])
def test_mailboxes_are_given_as_a_list_or_with_commas_each_once(given):
    assert Params.parse({"mailboxes": given}).mailboxes == (AN_ID,)


def test_params_are_kept_as_they_are_read_back():
    params = Params.parse(
        {
            "users": "a@x.example,b@x.example",
            "settle": "90s",
            "mailboxes": AN_ID,
            "repair_projection": True,
        }
    )
    assert Params.parse(params.as_json()) == params
    assert Params.parse({}).settle == timedelta(minutes=5)


@pytest.mark.parametrize("untouched", ["", [], None])
def test_a_field_of_a_form_that_nobody_touched_means_all(untouched):
    assert Params.parse({"mailboxes": untouched, "users": untouched}) == Params.parse({})


def test_an_id_that_is_none_is_named():
    with pytest.raises(BadInput, match="'not-an-id' is not the id of a mailbox"):
        Params.parse({"mailboxes": "not-an-id"})


def ring(*tokens, partitioner="org.apache.cassandra.dht.Murmur3Partitioner"):
    """A session whose cluster has these tokens."""
    metadata = SimpleNamespace(
        partitioner=partitioner,
        token_map=SimpleNamespace(ring=[SimpleNamespace(value=token) for token in tokens]),
    )
    return SimpleNamespace(cluster=SimpleNamespace(metadata=metadata), address="x:9042")


@given(st.lists(st.integers(LOWEST, HIGHEST), max_size=20), st.integers(1, 300))
def test_token_ranges_tile_the_ring_and_end_where_nodes_do(tokens, least):
    ranges = token_ranges(ring(*tokens), least)
    assert holes(ranges) == 0
    assert len(ranges) >= least
    assert {token for token in tokens if token not in {LOWEST, HIGHEST}} <= {
        high for _, high in ranges
    }
    assert all(low < high for low, high in ranges)


def test_a_hole_shows_and_so_does_a_range_read_twice():
    ranges = token_ranges(ring(0), 4)
    assert holes(ranges[1:]) == holes(ranges[:-1]) == holes([*ranges[:1], *ranges[2:]]) == 1
    assert holes([*ranges, ranges[0]]) == 1
    assert holes([]) == 1


def test_another_partitioner_is_refused():
    with pytest.raises(Refused, match="ByteOrderedPartitioner"):
        token_ranges(ring(partitioner="org.apache.cassandra.dht.ByteOrderedPartitioner"), 4)


def test_the_update_is_sent_once_without_retries_and_is_not_idempotent():
    sent = []

    class Session:
        settings = CassandraSettings(keyspace="ks")

        def prepare(self, cql, *, idempotent=True):
            return SimpleNamespace(
                bind=lambda values: SimpleNamespace(
                    cql=cql, values=values, is_idempotent=idempotent
                )
            )

        def execute(self, statement, params=()):
            sent.append(statement)

    mailbox = uuid.uuid1()
    MailboxTables(Session()).add(mailbox, -2, 3)
    (bound,) = sent
    assert (
        bound.cql
        == "UPDATE ks.mailboxcounters SET count = count + ?, unseen = unseen + ? WHERE mailboxid = ?"
    )
    assert bound.values == [-2, 3, mailbox]
    assert bound.is_idempotent is False
    assert isinstance(bound.retry_policy, FallthroughRetryPolicy)


@pytest.mark.parametrize(
    ("drift", "label"),
    [
        (0, "0"),
        (1, "1"),
        (2, "..10"),
        (10, "..10"),
        (11, "..100"),
        (1000, "..1000"),
        (1001, "> 1000"),
    ],
)
def test_the_histogram_has_a_column_for_every_drift(drift, label):
    assert histogram([drift])[LABELS.index(label)] == 1
    mirrored = {
        "0": "0",
        "1": "-1",
        "..10": "-10..",
        "..100": "-100..",
        "..1000": "-1000..",
        "> 1000": "< -1000",
    }[label]
    assert histogram([-drift])[LABELS.index(mirrored)] == 1


def test_the_same_drifts_give_the_same_picture():
    assert drifts_svg([1, -5], [0, 0], "today") == drifts_svg([1, -5], [0, 0], "today")
    assert b"no drift" in drifts_svg([], [], "today")


NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FACTS = ScanFacts(ranges=8, read=8, twice=0, holes=0, mailboxes=200, messages=2000, projected=2000)
DRIFT = Drift(uuid.UUID(AN_ID), has_counters=True, stored=Counters(1, 1), seen=Seen(2, 1))


@pytest.fixture
def context(tmp_path, monkeypatch):
    """What a check needs of its run: a folder, and the engine of this process."""
    monkeypatch.setattr(gate, "_publish", lambda *_: "not rendered")
    folder = RunFolder(Artifacts(str(tmp_path), S3Settings()), "counter_repair", NO_QUEUE, "r1")
    return SimpleNamespace(
        folder=folder,
        request=SimpleNamespace(duty="counter_repair", run="r1", queue=NO_QUEUE),
        queue=NO_QUEUE,
        spark=InProcess,
    )


def planned(context, drifts=(DRIFT,), kinds=("flagsDiffer",), **facts):
    """A plan with files of these rows; `facts` of its scan."""
    place = context.folder.file(PARTS)
    context.folder.artifacts.folder(place)

    def written(name, schema, rows):
        writer = RowsWriter(context.folder.artifacts, place, name, schema, always=True)
        writer.add(table_of(rows, schema))
        return writer.close()

    empty = dict.fromkeys(difference_schema().names)
    rows = [{**empty, "kind": kind, "mailbox": AN_ID, "uid": 1} for kind in kinds]
    return Plan(
        "r1",
        NOW,
        NOW,
        timedelta(minutes=5),
        trust_projection=False,
        repair_projection=True,
        drifts=written("drifts", drift_schema(), [each.row() for each in drifts]),
        differences=(written("differences", difference_schema(), rows),),
        inconsistencies={},
        scan=replace(FACTS, **facts),
    )


def judge(context, plan, share=0.2, age=timedelta(0)):
    frames = [totals(plan, share, NOW + age), drifts_of(context, plan), differences(context, plan)]
    return judged(context, "check", frames)


def test_a_plan_that_adds_up_passes(context):
    assert judge(context, planned(context))["success"]


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"read": 7}, "Every token range of every table was read"),
        ({"twice": 1}, "No token range was counted twice"),
        ({"holes": 1}, "tile the ring"),
        ({"messages": 999}, "a truth that was lost"),
    ],
)
def test_a_scan_that_was_not_whole_is_refused_by_the_sentence(context, facts, sentence):
    with pytest.raises(GateFailed, match=sentence):
        judge(context, planned(context, **facts))


def drift(stored, seen):
    return Drift(uuid.uuid4(), has_counters=True, stored=Counters(*stored), seen=Seen(*seen))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({"drifts": [DRIFT, DRIFT]}, "Every mailbox is listed once"),
        ({"drifts": [DRIFT, drift((2, 1), (2, 1))]}, "Every mailbox that is listed has a drift"),
        ({"drifts": [drift((2, 1), (2, 3))]}, "more unseen messages than messages"),
        ({"drifts": [drift((2, 1), (2, -1))]}, "fewer than no unseen messages"),
        ({"kinds": ["flagsDiffer", "other"]}, "differs does so in a known way"),
    ],
)
def test_a_row_of_the_plans_files_that_cannot_be_is_refused(context, rows, sentence):
    with pytest.raises(GateFailed, match=sentence):
        judge(context, planned(context, **rows))


def test_too_large_a_share_of_all_counters_is_refused_but_not_of_a_few(context):
    twenty, more = ([drift((9, 1), (2, 1)) for _ in range(count)] for count in (20, 21))
    assert judge(context, planned(context, twenty, mailboxes=30))["success"]
    assert judge(context, planned(context, more, mailboxes=200))["success"]
    with pytest.raises(GateFailed, match=r"At most 0\.1 of all mailboxes"):
        judge(context, planned(context, more, mailboxes=200), share=0.1)


def test_an_old_plan_is_refused(context):
    with pytest.raises(GateFailed, match="not older than a day"):
        judge(context, planned(context), age=timedelta(hours=25))


def test_what_the_gate_judges_is_in_the_digest(context):
    plan = planned(context)
    assert replace(plan, scan=replace(FACTS, read=9)).digest != plan.digest


def test_zero_is_no_time_between_two_reads():
    with pytest.raises(BadInput, match="settle='0s': allowed: more than 0s"):
        Params.parse({"settle": "0s"})


def test_items_beside_each_other_come_in_order_and_an_error_ends_them():
    begun = []

    def work(item):
        begun.append(item)
        if item == 40:
            raise ValueError("no")
        return item

    with ThreadPoolExecutor(4) as pool:
        found = beside_each_other(pool, work, iter(range(10_000)))
        assert [next(found) for _ in range(40)] == list(range(40))
        with pytest.raises(ValueError, match="no"):
            next(found)
    assert max(begun) < 200
