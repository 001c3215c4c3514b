"""Params, token ranges, the plot, the one update, items beside each other."""

import uuid
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailslice.duties.counter_repair.duty import LABELS, drifts_svg, histogram
from mailslice.duties.counter_repair.params import Params
from mailslice.model.errors import BadInput, Refused
from mailslice.model.settings import CassandraSettings
from mailslice.stores.cassandra.mailboxes import MailboxTables
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


@given(st.lists(st.integers(LOWEST, HIGHEST), max_size=20), st.integers(2, 300))
def test_token_ranges_tile_the_ring_and_end_where_nodes_do(tokens, least):
    ranges = token_ranges(ring(*tokens), least)
    assert holes(ranges) == 0
    assert len(ranges) >= least
    assert {token for token in tokens if token not in {LOWEST, HIGHEST}} <= {
        high for _, high in ranges
    }
    assert all(low < high for low, high in ranges)


@pytest.mark.parametrize("least", [0, 1])
def test_a_small_table_is_one_range(least):
    assert token_ranges(ring(5, 0), least) == [(LOWEST, HIGHEST)]


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
            return SimpleNamespace(cql=cql, is_idempotent=idempotent)

        def execute(self, statement, params=()):
            sent.append((statement, params))

    mailbox = uuid.uuid1()
    MailboxTables(Session()).add(mailbox, -2, 3)
    ((statement, values),) = sent
    assert (
        statement.cql == "UPDATE ks.mailboxcounters SET count = count + ?, unseen = unseen + ? "
        "WHERE mailboxid = ?"
    )
    assert values == [-2, 3, mailbox]
    assert statement.is_idempotent is False


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


def test_zero_is_no_time_between_two_reads():
    with pytest.raises(BadInput, match="settle='0s': allowed: more than 0s"):
        Params.parse({"settle": "0s"})
