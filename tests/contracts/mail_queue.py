"""The contract of MailQueue on any kind of tables.

A subclass gives `stores`, with both tables and one-hour slices, and `queue`.
"""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mailslice.admin.filters import MailFilter
from mailslice.admin.mail_queue import MailQueue
from mailslice.bench.clearing import drop_marks, marked_ids
from mailslice.codec import events
from mailslice.codec.wildcards import Wildcard
from mailslice.model.configuration import ViewConfiguration
from mailslice.model.errors import BadInput, ContentMissing
from mailslice.model.names import CONFIGURATION_AGGREGATE
from mailslice.stores.cassandra.own import SliceStatistic
from mailslice.stores.cassandra.starts import Start
from mailslice.view.live_rows import BrowseDeadline, LiveRows, LiveSummary, PageReading
from tests.contracts.making import HOUR, NOW, row

MILLISECOND = timedelta(milliseconds=1)


class MailQueueContract:
    @pytest.fixture
    def mail_queue(self, stores, queue):
        return MailQueue(stores, queue, lambda: NOW)

    def put(self, stores, *rows, start=None):
        """Writes rows, and browseStart as James does for the first mail."""
        for one in rows:
            stores.tables.v4.insert_future(one).result()
            stores.tables.browse_starts.insert_first(one.queue, start or one.partition.slice_start)
        return rows

    def test_an_unknown_view_is_empty(self, mail_queue):
        assert (mail_queue.size(), list(mail_queue.browse()), list(mail_queue.slices())) == (
            0,
            [],
            [],
        )

    def test_size_counts_live_rows_of_all_slices(self, stores, queue, mail_queue):
        rows = self.put(
            stores, *(row(queue, NOW - timedelta(hours=hour)) for hour in (30, 3, 3, 0))
        )
        stores.tables.deleted.mark_many(queue, [rows[1].enqueue_id])
        assert mail_queue.size() == 3

    def test_browse_gives_live_rows_whole_and_oldest_first(self, stores, queue, mail_queue):
        times = (
            NOW - 5 * HOUR,
            NOW - timedelta(minutes=1),
            NOW - timedelta(minutes=20),
            NOW - timedelta(minutes=10),
            NOW - 3 * HOUR,
        )
        rows = self.put(stores, *(row(queue, at) for at in times))
        stores.tables.deleted.mark_many(queue, [rows[3].enqueue_id])
        assert list(mail_queue.browse()) == [rows[0], rows[4], rows[2], rows[1]]

    def test_browse_stops_at_the_limit(self, stores, queue, mail_queue):
        rows = self.put(
            stores, *(row(queue, NOW - timedelta(minutes=minute)) for minute in (20, 10, 5))
        )
        assert list(mail_queue.browse(limit=2)) == list(rows[:2])
        assert list(mail_queue.browse(limit=0)) == []

    def test_browse_with_a_limit_and_a_filter_goes_on_until_enough_match(
        self, stores, queue, mail_queue
    ):
        rows = self.put(
            stores,
            *(
                row(queue, NOW - timedelta(minutes=50 - number), name=f"mail-{number % 10}")
                for number in range(40)
            ),
        )
        assert list(mail_queue.browse(MailFilter(name="mail-9"), limit=3)) == [
            rows[9],
            rows[19],
            rows[29],
        ]

    def test_rows_before_browse_start_are_not_in_the_queue(self, stores, queue, mail_queue):
        self.put(
            stores,
            row(queue, NOW - 5 * HOUR),
            row(queue),
            start=row(queue, NOW - HOUR).partition.slice_start,
        )
        assert mail_queue.size() == 1

    def test_a_browse_start_that_is_no_multiple_of_the_window_hides_nothing(
        self, stores, queue, mail_queue
    ):
        rows = self.put(
            stores,
            row(queue, NOW - 5 * HOUR),
            row(queue),
            start=NOW - 5 * HOUR + timedelta(minutes=17),
        )
        assert list(mail_queue.browse()) == list(rows)

    def test_rows_of_a_clock_ahead_by_less_than_a_window_are_seen(self, stores, queue, mail_queue):
        self.put(stores, row(queue, NOW), row(queue, NOW + HOUR))
        assert mail_queue.size() == 2

    def test_rows_without_a_browse_start_are_found(self, stores, queue, mail_queue):
        stores.tables.v4.insert_future(row(queue, NOW - 50 * HOUR)).result()
        assert mail_queue.size() == 1

    def test_both_tables_are_read_and_a_copied_row_counts_once(self, stores, queue, mail_queue):
        old, copied, new = row(queue, NOW - 2 * HOUR), row(queue, NOW - HOUR), row(queue)
        self.put(stores, copied, new, start=old.partition.slice_start)
        stores.tables.v3.insert_many([old, copied])
        assert mail_queue.size() == 3
        assert list(mail_queue.browse()) == [old, copied, new]
        assert [(one.live, one.dead) for one in mail_queue.slices()] == [(1, 0), (1, 0), (1, 0)]

    def test_rows_of_a_larger_window_and_of_fewer_buckets_are_still_seen(
        self, stores, queue, mail_queue
    ):
        for number, configuration in enumerate(
            (ViewConfiguration(HOUR, 1), ViewConfiguration(timedelta(minutes=10), 3))
        ):
            stores.tables.event_store.append(
                CONFIGURATION_AGGREGATE, number, events.encode(configuration, number)
            )
        old = row(queue, NOW - timedelta(minutes=5), name="mail-0")
        new = row(
            queue,
            NOW - timedelta(minutes=4),
            name="mail-0",
            window=timedelta(minutes=10),
            buckets=3,
        )
        assert (old.partition.bucket, new.partition.bucket) == (0, 2)
        self.put(stores, old, new)
        assert list(mail_queue.browse()) == [old, new]
        assert mail_queue.find(name="mail-0") == [old, new]
        assert mail_queue.shape.largest_window == HOUR

    def test_slices_count_live_and_dead(self, stores, queue, mail_queue):
        rows = self.put(stores, *(row(queue, NOW - timedelta(hours=hour)) for hour in (7, 7, 7, 2)))
        stores.tables.deleted.mark_many(queue, [rows[0].enqueue_id, rows[3].enqueue_id])
        first, second = mail_queue.slices()
        assert (first.slice_start, first.live, first.dead) == (rows[0].partition.slice_start, 2, 1)
        assert (second.slice_start, second.live, second.dead) == (
            rows[3].partition.slice_start,
            0,
            1,
        )

    @pytest.fixture
    def three(self, stores, queue):
        return self.put(
            stores,
            row(
                queue,
                NOW - 3 * HOUR,
                name="one",
                sender="Alice@Example.org",
                recipients=("bob@example.net", "carol@example.net"),
            ),
            row(queue, NOW - 2 * HOUR, name="two", sender=None, recipients=("carol@example.net",)),
            row(
                queue,
                NOW - HOUR,
                name="three",
                sender="älice@exämple.org",
                recipients=("dave@example.net",),
            ),
        )

    @pytest.mark.parametrize(
        ("wanted", "matching"),
        [
            (MailFilter(sender="alice@example.ORG"), [0]),
            (MailFilter(sender="<>"), [1]),
            (MailFilter(sender=""), [1]),
            (MailFilter(sender="ÄLICE@exämple.org"), [2]),
            (MailFilter(recipient="CAROL@example.net"), [0, 1]),
            (MailFilter(recipient="car@example.net"), []),
            (MailFilter(name="two"), [1]),
            (MailFilter(name="Two"), []),
            (MailFilter(older_than=2 * HOUR), [0, 1]),
            (MailFilter(older_than=timedelta(days=400_000)), []),
            (MailFilter(recipient="carol@example.net", sender="<>"), [1]),
            (MailFilter(sender=Wildcard("*@EXAMPLE.org", ignore_case=True)), [0]),
            (MailFilter(sender=Wildcard("*")), [0, 2]),
            (MailFilter(recipient=Wildcard("?arol@*")), [0, 1]),
            (MailFilter(recipient=Wildcard("bob@*"), sender=Wildcard("z*")), []),
            (MailFilter(name=Wildcard("t*")), [1, 2]),
            (MailFilter(name=Wildcard("T*")), []),
            (MailFilter(domain="EXAMPLE.net"), [0, 1, 2]),
            (MailFilter(domain="ample.net"), []),
            (MailFilter(domain=Wildcard("*.org")), []),
            (MailFilter(ids=frozenset()), []),
            (
                MailFilter(recipient="carol@example.net", older_than=timedelta(hours=2, seconds=1)),
                [0],
            ),
        ],
    )
    def test_delete_takes_what_matches_and_nothing_else(
        self, stores, queue, mail_queue, three, wanted, matching
    ):
        assert mail_queue.delete(wanted, dry_run=True) == len(matching)
        assert mail_queue.size() == 3
        assert mail_queue.delete(wanted) == len(matching)
        assert marked_ids(stores.tables.deleted, queue) == {
            three[index].enqueue_id for index in matching
        }
        assert mail_queue.delete(wanted) == 0

    @pytest.mark.parametrize("strangers", [0, 2000])
    def test_delete_by_ids_takes_these_and_no_other(
        self, stores, queue, mail_queue, three, strangers
    ):
        first, _, third = (one.enqueue_id for one in three)
        ids = frozenset({first, third, *(uuid4() for _ in range(strangers))})
        assert mail_queue.delete(MailFilter(ids=ids, name="three")) == 1
        assert marked_ids(stores.tables.deleted, queue) == {third}
        assert mail_queue.delete(MailFilter(ids=ids)) == 1
        assert marked_ids(stores.tables.deleted, queue) == {first, third}

    def test_a_page_goes_on_behind_its_last_mail_even_when_that_is_done(
        self, stores, queue, mail_queue
    ):
        same = NOW - timedelta(minutes=7)
        times = (NOW - 5 * HOUR, NOW - 3 * HOUR, same, same, same, NOW)
        self.put(stores, *(row(queue, at) for at in times))
        everything = list(mail_queue.browse())
        assert len(everything) == len(times)
        for at in range(len(times)):
            after = everything[at].enqueue_id
            assert list(mail_queue.browse(after=after, limit=2)) == everything[at + 1 : at + 3]
        stores.tables.deleted.mark_many(queue, [everything[2].enqueue_id])
        rest = mail_queue.browse(after=everything[2].enqueue_id)
        assert list(rest) == everything[3:]

    def test_a_page_goes_on_behind_a_mail_that_browse_start_has_passed(
        self, stores, queue, mail_queue
    ):
        old, young = (row(queue, at) for at in (NOW - 9 * HOUR, NOW))
        self.put(stores, young)
        self.put(stores, old)
        assert list(mail_queue.browse(after=old.enqueue_id)) == [young]

    def test_a_page_behind_a_mail_without_a_row_is_refused(self, mail_queue, three):
        with pytest.raises(BadInput, match="no row of mail"):
            list(mail_queue.browse(after=uuid4()))

    def test_with_a_deadline_that_is_not_over_a_browse_is_the_same(self, stores, queue, mail_queue):
        times = (NOW - 5 * HOUR, *[NOW - 2 * HOUR] * 250, NOW)
        rows = self.put(stores, *(row(queue, at) for at in times))
        stores.tables.deleted.mark_many(queue, [one.enqueue_id for one in rows[2:200]])
        deadline = BrowseDeadline.in_seconds(600)
        assert list(mail_queue.browse(deadline=deadline)) == list(mail_queue.browse())
        assert deadline.stopped_at is None

    @pytest.mark.parametrize("mail_filter", [MailFilter(), MailFilter(name="mail-1")])
    def test_a_browse_ends_at_its_deadline_among_dead_rows(
        self, stores, queue, mail_queue, mail_filter
    ):
        *dead, live = self.put(
            stores, *(row(queue, NOW - hours * HOUR) for hours in (*[5] * 250, 1))
        )
        stores.tables.deleted.mark_many(queue, [one.enqueue_id for one in dead])
        deadline = BrowseDeadline(end=0.0)
        assert list(mail_queue.browse(mail_filter, deadline=deadline)) == []
        assert deadline.stopped_at == dead[0].partition.slice_start
        assert list(mail_queue.browse()) == [live]

    def test_of_a_slice_that_is_not_read_to_its_end_in_time_some_are_listed(
        self, stores, queue, mail_queue
    ):
        crowd = self.put(stores, *(row(queue, NOW - HOUR + i * MILLISECOND) for i in range(250)))
        self.put(stores, row(queue, NOW))
        deadline = BrowseDeadline(end=0.0)
        listed = list(mail_queue.browse(deadline=deadline))
        assert 1 <= len(listed) <= 100
        assert listed == [one for one in crowd if one in listed]
        assert deadline.stopped_at == crowd[0].partition.slice_start

    def test_a_browse_ends_at_its_deadline_among_live_rows_that_do_not_match(
        self, stores, queue, mail_queue
    ):
        rows = self.put(stores, *(row(queue, NOW - HOUR + i * MILLISECOND) for i in range(1100)))
        self.put(stores, row(queue, NOW, name="last"))
        deadline = BrowseDeadline.in_seconds(600)
        browsing = mail_queue.browse(deadline=deadline)
        assert next(browsing) == rows[0]
        deadline.end = 0.0
        assert len(list(browsing)) == 999
        assert deadline.stopped_at == rows[999].enqueued_time

    def pages(self, mail_queue, **bounds):
        """The mails of each page with these bounds, until there is no next page."""
        pages, position = [], None
        while True:
            reading = PageReading(**bounds)
            pages.append(list(mail_queue.page(reading, 10, after=position)))
            if (position := reading.position) is None:
                return pages

    def test_pages_of_bounded_reading_list_what_a_browse_does(self, stores, queue, mail_queue):
        same = NOW - timedelta(minutes=7)
        times = (NOW - 5 * HOUR, NOW - 3 * HOUR, *[NOW - 2 * HOUR] * 150, same, same, same, NOW)
        rows = self.put(stores, *(row(queue, at) for at in times))
        dead = [one.enqueue_id for one in rows[2:140]]
        stores.tables.deleted.mark_many(queue, dead)
        live = list(mail_queue.browse())
        assert len(live) == len(times) - len(dead)
        for marks in (1, 7, 100, 1000):
            pages = self.pages(mail_queue, marks=marks)
            assert [one for page in pages for one in page] == live
            assert len(pages) >= len(times) // (marks + 1)
            assert all(len(page) <= marks + 1 for page in pages)

    def test_of_a_slice_with_too_many_rows_some_are_listed_and_the_next_slice_follows(
        self, stores, queue, mail_queue
    ):
        crowd = self.put(stores, *(row(queue, NOW - HOUR + i * MILLISECOND) for i in range(250)))
        later = self.put(stores, row(queue, NOW))
        reading = PageReading(ids=100)
        listed = list(mail_queue.page(reading, 10))
        assert reading.is_cut
        assert 100 <= len(listed) < 250
        assert listed == [one for one in crowd if one in listed]
        rest = PageReading(ids=100)
        assert list(mail_queue.page(rest, 10, after=reading.position)) == list(later)
        assert (rest.position, rest.is_cut) == (None, False)

    def test_a_page_leaves_out_late_mails_and_skipped_slices(self, stores, queue, mail_queue):
        rows = self.put(stores, *(row(queue, NOW - hours * HOUR) for hours in (5, 3, 2, 0)))
        skipped = {rows[1].partition.slice_start}.__contains__
        reading = PageReading()
        late = NOW - HOUR
        listed = mail_queue.page(reading, 10, latest=late, is_skipped=skipped)
        assert list(listed) == [rows[0], rows[2]]
        behind = mail_queue.page(PageReading(), 10, after=rows[2].enqueue_id)
        assert list(behind) == [rows[3]]

    def test_a_glance_counts_what_costs_little(self, stores, queue, mail_queue):
        live = LiveRows(stores.tables, queue, mail_queue.shape)
        assert live.small_summary(NOW, 10, 10) == LiveSummary(0, None)
        rows = self.put(stores, *(row(queue, NOW - hours * HOUR) for hours in (5, 3, 3, 0)))
        stores.tables.deleted.mark_many(queue, [rows[0].enqueue_id])
        assert live.small_summary(NOW, 4, 10) == LiveSummary(3, rows[1].enqueued_time)
        assert live.small_summary(NOW, 3, 10) is None
        assert live.small_summary(NOW, 4, 5) is None

    def test_delete_without_a_filter_is_refused(self, mail_queue, three):
        with pytest.raises(BadInput, match="use clear"):
            mail_queue.delete(MailFilter())
        assert mail_queue.size() == 3

    def test_clear_marks_every_live_mail_and_moves_nothing(self, stores, queue, mail_queue, three):
        stores.tables.deleted.mark_many(queue, [three[0].enqueue_id])
        start = stores.tables.browse_starts.get(queue)
        assert mail_queue.clear() == 2
        assert mail_queue.size() == 0
        assert stores.tables.browse_starts.get(queue) == start
        assert stores.tables.v4.row(queue, three[1].partition, three[1].enqueue_id) == three[1]

    def test_find_gives_live_mails_by_name_or_id(self, stores, queue, mail_queue, three):
        again = row(queue, NOW, name="one")
        self.put(stores, again)
        assert mail_queue.find(name="one") == [three[0], again]
        assert mail_queue.find(enqueue_id=three[1].enqueue_id) == [three[1]]
        assert mail_queue.find(name="other", enqueue_id=three[1].enqueue_id) == []
        stores.tables.deleted.mark_many(queue, [three[1].enqueue_id])
        assert mail_queue.find(enqueue_id=three[1].enqueue_id) == []
        with pytest.raises(BadInput, match="neither"):
            mail_queue.find()

    def test_content_is_header_and_body_and_a_missing_blob_is_said(self, stores, mail_queue, three):
        item = three[0].item
        stores.blobs.ensure_bucket()
        stores.blobs.put(item.header_blob_id, b"Subject: \xff\n\r\n")
        with pytest.raises(ContentMissing):
            mail_queue.content(three[0])
        stores.blobs.put(item.body_blob_id, b"b\x00dy")
        assert mail_queue.content(three[0]) == b"Subject: \xff\n\r\nb\x00dy"

    def remembered(self, stores, queue, rows, monkeypatch, **changes):
        """Stores statistics as if a cleanup had read the slice of `rows` long after its end. The
        first row is live, the others are dead.
        """
        start = rows[0].partition.slice_start
        kept = {
            "live": 1,
            "dead": 5000,
            "cleaned_at": start + 3 * HOUR,
            "survivors": (rows[0].enqueue_id,),
        } | changes
        stores.tables.deleted.mark_many(queue, [one.enqueue_id for one in rows[1:]])
        monkeypatch.setattr(stores, "remembered_slices", lambda _: [SliceStatistic(start, **kept)])

    def test_dead_rows_of_a_remembered_slice_are_not_read_again(
        self, stores, queue, mail_queue, monkeypatch
    ):
        rows = self.put(stores, *(row(queue, NOW - 9 * HOUR) for _ in range(5)), row(queue))
        self.remembered(stores, queue, rows[:5], monkeypatch)
        asked = []
        for table in (stores.tables.v3, stores.tables.v4):
            for name in ("timed_ids_of", "packed_ids_of"):
                read = getattr(table, name)
                spy = lambda queue, partitions, *rest, read=read, **named: read(
                    queue,
                    (asked.append(partition) or partition for partition in partitions),
                    *rest,
                    **named,
                )
                monkeypatch.setattr(table, name, spy)
        assert mail_queue.size() == 2
        assert list(mail_queue.browse()) == [rows[0], rows[5]]
        assert rows[5].partition in asked
        assert rows[0].partition not in asked

    def test_a_remembered_slice_with_few_dead_rows_is_read_so_that_a_late_insert_shows(
        self, stores, queue, mail_queue, monkeypatch
    ):
        rows = self.put(stores, *(row(queue, NOW - 9 * HOUR) for _ in range(3)))
        self.remembered(stores, queue, rows, monkeypatch, dead=2)
        late = self.put(stores, row(queue, NOW - 9 * HOUR))
        assert mail_queue.size() == 2
        assert {one.enqueue_id for one in mail_queue.browse()} == {
            rows[0].enqueue_id,
            late[0].enqueue_id,
        }

    def test_a_survivor_that_was_done_or_cleaned_since_is_not_counted(
        self, stores, queue, mail_queue, monkeypatch
    ):
        rows = self.put(stores, *(row(queue, NOW - 9 * HOUR) for _ in range(2)))
        self.remembered(stores, queue, rows, monkeypatch)
        stores.tables.deleted.mark_many(queue, [rows[0].enqueue_id])
        assert (mail_queue.size(), list(mail_queue.browse())) == (0, [])
        last_us = max(found.written_us for found in stores.tables.v4.ids(queue, rows[0].partition))
        stores.tables.v4.delete_partition_future(queue, rows[0].partition, last_us).result()
        drop_marks(stores.tables.deleted, queue, [one.enqueue_id for one in rows])
        assert (mail_queue.size(), list(mail_queue.browse())) == (0, [])

    @pytest.mark.parametrize(
        "changes", [{"cleaned_at": NOW - 9 * HOUR + timedelta(minutes=89)}, {"live": 2}]
    )
    def test_a_slice_that_was_looked_at_too_early_or_with_unknown_survivors_is_read(
        self, stores, queue, mail_queue, monkeypatch, changes
    ):
        rows = self.put(stores, *(row(queue, NOW - 9 * HOUR) for _ in range(3)))
        self.remembered(stores, queue, rows, monkeypatch, **changes)
        late = self.put(stores, row(queue, NOW - 9 * HOUR))[0]
        assert mail_queue.size() == 2
        assert {one.enqueue_id for one in mail_queue.browse()} == {
            rows[0].enqueue_id,
            late.enqueue_id,
        }

    def test_what_changes_the_queue_reads_every_row(self, stores, queue, mail_queue, monkeypatch):
        rows = self.put(stores, *(row(queue, NOW - 9 * HOUR) for _ in range(3)))
        self.remembered(stores, queue, rows, monkeypatch)
        late = self.put(stores, row(queue, NOW - 9 * HOUR, name="late"))[0]
        assert mail_queue.find(name="late") == [late]
        assert mail_queue.delete(MailFilter(name="late"), dry_run=True) == 1
        assert mail_queue.clear() == 2

    @pytest.mark.parametrize(
        "look",
        [
            lambda queue: queue.size(),
            lambda queue: len(list(queue.slices())),
            lambda queue: len(list(queue.browse())),
            lambda queue: len(list(queue.page(PageReading(), 10))),
            lambda queue: queue.clear(),
        ],
    )
    def test_rows_that_a_cleanup_takes_between_two_reads_never_seem_live(
        self, stores, queue, mail_queue, monkeypatch, look
    ):
        rows = self.put(stores, *(row(queue, NOW - 9 * HOUR) for _ in range(3)))
        ids = [one.enqueue_id for one in rows]
        stores.tables.deleted.mark_many(queue, ids)
        look_up = stores.tables.deleted.look_up

        def cleaned_meanwhile(queue, asked, *rest, **named):
            drawn = list(asked)
            last_us = (
                max(found.written_us for found in stores.tables.v4.ids(queue, rows[0].partition))
                if drawn
                else 0
            )
            stores.tables.v4.delete_partition_future(queue, rows[0].partition, last_us).result()
            drop_marks(stores.tables.deleted, queue, ids)
            return look_up(queue, drawn, *rest, **named)

        monkeypatch.setattr(stores.tables.deleted, "look_up", cleaned_meanwhile)
        assert look(mail_queue) == 0
        assert not marked_ids(stores.tables.deleted, queue)

    @pytest.mark.parametrize(
        "look",
        [
            lambda queue: queue.size(),
            lambda queue: len(list(queue.slices())),
            lambda queue: queue.live_summary(10).size,
            lambda queue: len(list(queue.browse())),
            lambda queue: len(list(queue.page(PageReading(), 10))),
            lambda queue: len(list(queue.matching(MailFilter(sender="alice@example.org")))),
            lambda queue: queue.delete(MailFilter(name="mail-1")),
            lambda queue: queue.clear(),
        ],
    )
    def test_mails_that_james_clears_between_two_reads_do_not_count_as_live(
        self, stores, queue, mail_queue, monkeypatch, look
    ):
        """James moves browseStart on, then drops marks, then rows."""
        rows = self.put(stores, *(row(queue, NOW - 9 * HOUR) for _ in range(3)))
        ids = [one.enqueue_id for one in rows]
        stores.tables.deleted.mark_many(queue, ids)
        look_up = stores.tables.deleted.look_up

        def cleared_meanwhile(queue, asked, *rest, **named):
            drawn, written = list(asked), stores.tables.browse_starts.get(queue).written_us
            stores.tables.browse_starts.write(queue, NOW, written + 1)
            drop_marks(stores.tables.deleted, queue, ids)
            return look_up(queue, drawn, *rest, **named)

        monkeypatch.setattr(stores.tables.deleted, "look_up", cleared_meanwhile)
        assert look(mail_queue) == 0

    def test_very_many_slices_are_found_by_the_keys_that_exist(self, stores, queue, mail_queue):
        first = datetime(1990, 1, 1, tzinfo=UTC)
        rows = self.put(stores, row(queue, NOW - HOUR), row(queue, NOW), start=first)
        stores.tables.v4.insert_future(row(queue, first - HOUR)).result()
        assert stores.tables.browse_starts.get(queue) == Start(
            first, stores.tables.browse_starts.get(queue).written_us
        )
        assert list(mail_queue.browse()) == list(rows)
