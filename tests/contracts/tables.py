"""The contract of queue tables. Runs on the double in memory and on Cassandra.

A subclass gives `tables` and `queue`.
"""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from mailslice.bench.clearing import drop_marks, marked_ids
from mailslice.codec.row import epoch_ms
from mailslice.model.mail import Partition, QueueName
from mailslice.stores.cassandra.deleted_mails import ALL
from mailslice.stores.cassandra.ids import id_set, pack, unpack
from mailslice.stores.cassandra.starts import Start
from tests.contracts.making import NOW, bare_row, full_row, row


def rows_in(table, queue, partition):
    return [found for _, page in table.rows_of(queue, [partition]) for found in page]


class TablesContract:
    @pytest.fixture(params=["v3", "v4"])
    def rows(self, tables, request):
        return getattr(tables, request.param)

    def test_a_full_row_comes_back_as_it_was_written(self, rows, queue):
        written = full_row(queue)
        rows.insert_future(written).result()
        assert rows.row(queue, written.partition, written.enqueue_id) == written
        assert rows_in(rows, queue, written.partition) == [written]

    def test_a_row_of_nulls_comes_back_with_none_and_empty(self, rows, queue):
        written = bare_row(queue)
        rows.insert_future(written).result()
        assert rows.row(queue, written.partition, written.enqueue_id) == written

    def test_a_row_is_replaced_only_where_it_still_is(self, rows, queue):
        written = full_row(queue)
        rows.insert_future(written).result()
        fewer = replace(
            written,
            item=replace(
                written.item, mail=replace(written.item.mail, recipients=("carol@example.net",))
            ),
        )
        rows.replace_future(fewer).result()
        assert rows.row(queue, written.partition, written.enqueue_id) == fewer
        (found,) = rows.ids(queue, written.partition)
        rows.delete_partition_future(queue, written.partition, found.written_us).result()
        rows.replace_future(written).result()
        assert rows.row(queue, written.partition, written.enqueue_id) is None
        assert list(rows.ids(queue, written.partition)) == []

    def test_a_row_that_a_clock_ahead_has_written_is_not_replaced_before_that_time(
        self, rows, queue
    ):
        """An LWT writes with the coordinator's time. The caller has to read the row back."""
        written = full_row(queue)
        rows.insert_future(written).result()
        (now,) = rows.ids(queue, written.partition)
        rows.copy_many([(written, now.written_us + 60_000_000)])
        recipients = ("carol@example.net",)
        assert set(written.item.mail.recipients) != set(recipients)
        fewer = replace(
            written,
            item=replace(written.item, mail=replace(written.item.mail, recipients=recipients)),
        )
        rows.replace_future(fewer).result()
        place = (queue, written.partition, written.enqueue_id)
        assert rows.row(*place) != fewer
        assert set(rows.row(*place).item.mail.recipients) >= set(written.item.mail.recipients)

    def test_last_updated_is_cut_to_milliseconds(self, rows, queue):
        written = row(queue, last_updated_ns=1795165687654321987)
        rows.insert_future(written).result()
        assert (
            rows.row(queue, written.partition, written.enqueue_id).item.mail.last_updated_ns
            == 1795165687654000000
        )

    def test_a_row_that_is_not_there_is_none(self, rows, queue):
        assert rows.row(queue, row(queue).partition, row(queue).enqueue_id) is None
        assert rows_in(rows, queue, row(queue).partition) == []

    def test_ids_say_when_a_row_was_enqueued_and_written(self, rows, queue):
        first, second = row(queue), row(queue, NOW + timedelta(milliseconds=7))
        rows.insert_future(first).result()
        rows.insert_future(second).result()
        found = {found.enqueue_id: found for found in rows.ids(queue, first.partition)}
        assert {key: value.enqueued_time for key, value in found.items()} == {
            first.enqueue_id: first.enqueued_time,
            second.enqueue_id: second.enqueued_time,
        }
        assert found[first.enqueue_id].written_us < found[second.enqueue_id].written_us

    def test_a_copy_keeps_its_write_time_and_loses_to_what_was_written_or_deleted_later(
        self, tables, queue
    ):
        first, late, gone = (row(queue, NOW + timedelta(milliseconds=at)) for at in range(3))
        for each in (first, late, gone):
            tables.v3.insert_future(each).result()
        assert [partition for partition, _ in tables.v3.written_rows_of(queue, [first.partition])][
            :1
        ] == [first.partition]
        written = {
            each.enqueue_id: (each, at)
            for _, page in tables.v3.written_rows_of(queue, [first.partition])
            for each, at in page
        }
        assert set(written) == {first.enqueue_id, late.enqueue_id, gone.enqueue_id}
        assert sorted(tables.v3.written_by_ids(queue, [(first.partition, [late.enqueue_id])])) == [
            written[late.enqueue_id]
        ]
        newer = replace(late, enqueued_time=late.enqueued_time + timedelta(seconds=1))
        tables.v4.insert_future(newer).result()
        tables.v4.delete_partition_future(
            queue,
            Partition(first.partition.slice_start, first.partition.bucket),
            written[gone.enqueue_id][1] - 1,
        ).result()
        assert (
            tables.v4.copy_many(
                [written[late.enqueue_id], written[gone.enqueue_id], written[first.enqueue_id]]
            )
            == 3
        )
        found = {
            each.enqueue_id: (each, at)
            for _, page in tables.v4.written_rows_of(queue, [first.partition])
            for each, at in page
        }
        assert set(found) == {
            late.enqueue_id,
            gone.enqueue_id,
        }  # the write time of `first` is before the delete
        assert found[gone.enqueue_id] == written[gone.enqueue_id]
        assert found[late.enqueue_id][0] == newer
        assert found[late.enqueue_id][1] > written[late.enqueue_id][1]

    def test_rows_of_one_partition_are_not_in_another(self, rows, queue):
        written = row(queue, name="mail-1", buckets=2)
        rows.insert_future(written).result()
        partition = written.partition
        for other in (
            Partition(partition.slice_start, 0),
            Partition(partition.slice_start - timedelta(hours=1), 1),
        ):
            assert rows_in(rows, queue, other) == []
        assert partition.bucket == 1
        assert rows_in(rows, QueueName(queue + "-other"), partition) == []

    def test_many_partitions_are_read_in_order_and_empty_ones_too(self, rows, queue):
        written = [row(queue, NOW + timedelta(hours=hour)) for hour in (0, 2)]
        assert rows.insert_many(written) == 2
        partitions = [
            Partition(written[0].partition.slice_start + timedelta(hours=hour), 0)
            for hour in range(3)
        ]
        assert list(rows.rows_of(queue, partitions, ordered=True)) == [
            (partitions[0], [written[0]]),
            (partitions[1], []),
            (partitions[2], [written[1]]),
        ]
        assert [
            (partition, [found.enqueue_id for found in ids])
            for partition, ids in rows.ids_of(queue, partitions, ordered=True)
        ] == [
            (partitions[0], [written[0].enqueue_id]),
            (partitions[1], []),
            (partitions[2], [written[1].enqueue_id]),
        ]

    def test_some_rows_are_read_by_their_ids(self, rows, queue):
        written = [row(queue, name=f"mail-{number}") for number in range(250)]
        rows.insert_many(written)
        wanted = [one.enqueue_id for one in written[:205]]
        found = list(rows.by_ids(queue, [(written[0].partition, [*wanted, uuid4()])]))
        assert {one.enqueue_id: one for one in found} == {
            one.enqueue_id: one for one in written[:205]
        }
        assert len(found) == 205

    def test_which_of_some_ids_have_a_row_is_read_without_the_others(self, rows, queue):
        written = [row(queue, name=f"mail-{number}") for number in range(120)]
        rows.insert_many(written)
        wanted = [
            (written[0].partition, [one.enqueue_id for one in written[:101]]),
            (Partition(written[0].partition.slice_start, 5), [written[0].enqueue_id]),
        ]
        found = list(rows.existing_ids(queue, wanted, ordered=True))
        assert {
            one.enqueue_id
            for partition, page in found
            for one in page
            if partition == written[0].partition
        } == set(wanted[0][1])
        assert [page for partition, page in found if partition.bucket == 5] == [[]]

    def test_a_row_is_found_in_whichever_place_it_is(self, rows, queue):
        written = row(queue)
        rows.insert_future(written).result()
        partitions = [
            Partition(written.partition.slice_start + timedelta(hours=hour), 0)
            for hour in range(-3, 3)
        ]
        assert list(rows.find(queue, partitions, written.enqueue_id)) == [written]
        assert list(rows.find(queue, partitions[:3], written.enqueue_id)) == []

    def test_deleting_a_partition_spares_what_was_written_later(self, rows, queue):
        first, late = row(queue), row(queue)
        rows.insert_future(first).result()
        written_us = next(iter(rows.ids(queue, first.partition))).written_us
        rows.insert_future(late).result()
        rows.delete_partition_future(queue, first.partition, written_us).result()
        assert rows_in(rows, queue, first.partition) == [late]

    def test_places_are_those_of_the_queue_that_hold_rows(self, rows, queue):
        written = [row(queue, NOW + timedelta(hours=hour)) for hour in range(3)]
        rows.insert_many([*written, row(QueueName(queue + "-other"), NOW + timedelta(hours=9))])
        rows.delete_partition_future(
            queue,
            written[0].partition,
            next(iter(rows.ids(queue, written[0].partition))).written_us,
        ).result()
        assert set(rows.partitions(queue)) == {written[1].partition, written[2].partition}

    def test_v3_and_v4_are_apart(self, tables, queue):
        written = row(queue)
        tables.v3.insert_future(written).result()
        assert tables.v4.row(queue, written.partition, written.enqueue_id) is None

    def test_a_mark_is_seen_in_its_queue_only(self, tables, queue):
        marked, other = row(queue).enqueue_id, row(queue).enqueue_id
        tables.deleted.mark_future(queue, marked).result()
        assert tables.deleted.is_marked(queue, marked)
        assert tables.deleted.is_marked_future(queue, marked).result()
        assert not list(tables.deleted.is_marked_future(queue, other).result())
        assert not tables.deleted.is_marked(queue, other)
        assert not tables.deleted.is_marked(QueueName(queue + "-other"), marked)

    def test_marks_of_many_ids_are_found_among_more(self, tables, queue):
        ids = [row(queue).enqueue_id for _ in range(350)]
        assert tables.deleted.mark_many(queue, ids[:333]) == 333
        assert tables.deleted.marked(queue, iter(ids)) == set(ids[:333])
        assert marked_ids(tables.deleted, queue) == set(ids[:333])

    @pytest.mark.parametrize("ordered", [True, False])
    def test_a_look_up_gives_back_what_was_asked_with_the_marked_among_it(
        self, tables, queue, ordered
    ):
        all_marked, some, none = ([row(queue).enqueue_id for _ in range(100)] for _ in range(3))
        tables.deleted.mark_many(queue, [*all_marked, *some[::2]])
        asked = [(number, pack(each)) for number, each in enumerate((all_marked, some, none))]
        found = list(tables.deleted.look_up(queue, iter(asked), ordered=ordered))
        assert [each[:2] for each in sorted(found)] == asked
        assert {each[0]: each[2] for each in found} == {
            0: ALL,
            1: id_set(pack(some[::2])),
            2: frozenset(),
        }
        if ordered:
            assert [each[0] for each in found] == [0, 1, 2]

    def test_packed_and_timed_ids_are_those_of_the_rows_page_by_page(self, rows, queue):
        """More than a page of rows, and a row without an enqueued time, as James may leave one."""
        partition = row(queue).partition
        written = [row(queue) for _ in range(3)]
        rows.insert_many(written)
        elsewhere = Partition(partition.slice_start - timedelta(hours=9), 0)
        assert [
            unpack(packed) for _, packed in rows.packed_ids_of(queue, [partition], ordered=True)
        ] == [[each.enqueue_id for each in rows.ids(queue, partition)]]
        assert dict(rows.packed_ids_of(queue, [elsewhere])) == {elsewhere: b""}
        ((_, timed),) = rows.timed_ids_of(queue, [partition])
        times = {one: timed.time_of(at) for at, one in enumerate(unpack(timed.packed))}
        assert times == {each.enqueue_id: epoch_ms(each.enqueued_time) for each in written}

    def test_dropped_marks_are_gone_and_others_stay(self, tables, queue):
        ids = [row(queue).enqueue_id for _ in range(5)]
        tables.deleted.mark_many(queue, ids)
        drop_marks(tables.deleted, queue, ids[:3])
        assert tables.deleted.marked(queue, ids) == set(ids[3:])

    @pytest.fixture(params=["browse_starts", "content_starts"])
    def starts(self, tables, request):
        return getattr(tables, request.param)

    def test_a_start_is_written_once_by_insert_first(self, starts, queue):
        assert starts.get(queue) is None
        assert starts.insert_first(queue, NOW)
        assert not starts.insert_first(queue, NOW + timedelta(hours=1))
        assert starts.get(queue).value == NOW

    def test_a_start_written_with_an_older_write_time_is_not_seen(self, starts, queue):
        starts.write(queue, NOW, 1_000_000)
        starts.write(queue, NOW + timedelta(hours=1), 999_999)
        assert starts.get(queue) == Start(NOW, 1_000_000)
        starts.write(queue, NOW + timedelta(hours=2), 1_000_001)
        assert starts.get(queue) == Start(NOW + timedelta(hours=2), 1_000_001)

    def test_browse_start_and_content_start_are_apart(self, tables, queue):
        tables.browse_starts.insert_first(queue, NOW)
        assert tables.content_starts.get(queue) is None

    def test_events_are_appended_once_each(self, tables, queue):
        store = tables.event_store
        assert store.events(queue) == []
        assert store.append(queue, 0, "first")
        assert not store.append(queue, 0, "other")
        assert store.append(queue, 1, "second")
        assert store.events(queue) == [(0, "first"), (1, "second")]


def some_queue() -> QueueName:
    """A queue that no other test uses."""
    return QueueName(f"q-{UUID(int=uuid4().int).hex[:12]}")
