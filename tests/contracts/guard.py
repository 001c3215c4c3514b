"""The contract of the configuration guard.

A subclass gives `make_guard(**environment) -> ConfigurationGuard` over one event store.
"""

from datetime import timedelta

import pytest

from mailslice.codec import events
from mailslice.model.configuration import ViewConfiguration
from mailslice.model.errors import ConfigurationDiffers, Refused
from mailslice.model.names import CONFIGURATION_AGGREGATE
from mailslice.model.settings import BlobStrategy

HOUR = timedelta(hours=1)


class GuardContract:
    def test_the_first_start_stores_the_settings_as_event_0(self, make_guard):
        guard = make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="3")
        assert guard.stored() is None
        assert guard.ensure() == ViewConfiguration(HOUR, 3, 1000)
        assert guard.events() == [(0, events.encode(ViewConfiguration(HOUR, 3, 1000), 0))]

    def test_who_only_looks_agrees_to_the_same_and_stores_nothing(self, make_guard):
        guard = make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="3")
        assert guard.agreed() == ViewConfiguration(HOUR, 3, 1000)
        assert guard.stored() is None
        guard.ensure()
        assert make_guard().agreed() == ViewConfiguration(HOUR, 3, 1000)
        with pytest.raises(ConfigurationDiffers, match="bucketCount"):
            make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="2").agreed()
        assert len(guard.events()) == 1

    def test_an_equal_configuration_stores_nothing_more(self, make_guard):
        make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="3").ensure()
        assert make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="3").ensure().bucket_count == 3
        assert len(make_guard().events()) == 1

    def test_settings_that_are_not_given_follow_what_is_stored(self, make_guard):
        make_guard(MAILSLICE_QUEUE_SLICE_WINDOW="10m", MAILSLICE_QUEUE_BUCKET_COUNT="3").ensure()
        assert make_guard().ensure() == ViewConfiguration(timedelta(minutes=10), 3, 1000)
        assert make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="3").ensure().slice_window == timedelta(
            minutes=10
        )

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (
                {"MAILSLICE_QUEUE_SLICE_WINDOW": "20m"},
                [
                    "sliceWindow=1h",
                    "sliceWindow=20m",
                    "stores the wanted one",
                    "mailslice config apply",
                ],
            ),
            (
                {"MAILSLICE_QUEUE_SLICE_WINDOW": "50m"},
                ["sliceWindow=1h", "sliceWindow=50m", "would refuse", "must divide"],
            ),
            (
                {"MAILSLICE_QUEUE_BUCKET_COUNT": "2"},
                ["bucketCount=3", "bucketCount=2", "may not decrease"],
            ),
            (
                {"MAILSLICE_QUEUE_BROWSE_START_PACE": "5"},
                ["updateBrowseStartPace=1000", "updateBrowseStartPace=5", "mailslice config apply"],
            ),
        ],
    )
    def test_a_given_setting_that_differs_is_refused_with_both_and_the_remedy(
        self, make_guard, given, words
    ):
        make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="3").ensure()
        with pytest.raises(ConfigurationDiffers) as raised:
            make_guard(**given).ensure()
        assert raised.value.exit_code == 3
        assert [word for word in words if word not in str(raised.value)] == []
        assert len(make_guard().events()) == 1

    def test_apply_appends_what_james_would_accept(self, make_guard):
        make_guard().ensure()
        guard = make_guard(MAILSLICE_QUEUE_SLICE_WINDOW="20m", MAILSLICE_QUEUE_BUCKET_COUNT="2")
        assert guard.apply()
        assert not guard.apply()
        assert guard.ensure() == ViewConfiguration(timedelta(minutes=20), 2, 1000)
        assert guard.history() == [ViewConfiguration(), ViewConfiguration(timedelta(minutes=20), 2)]
        assert [number for number, _ in guard.events()] == [0, 1]

    @pytest.mark.parametrize(
        ("wanted", "why"),
        [
            (ViewConfiguration(HOUR, 2), "bucketCount may not decrease"),
            (ViewConfiguration(2 * HOUR, 3), "sliceWindow may not grow"),
            (ViewConfiguration(timedelta(minutes=50), 3), "sliceWindow must divide"),
        ],
    )
    def test_apply_refuses_what_james_refuses(self, make_guard, wanted, why):
        guard = make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="3")
        guard.ensure()
        with pytest.raises(Refused, match=why):
            guard.apply(wanted)
        assert guard.history() == [ViewConfiguration(HOUR, 3)]

    def test_a_race_at_the_first_start_is_lost_to_the_stored_one(self, make_guard, monkeypatch):
        guard = make_guard()
        read = guard.events
        answers = iter([[]])
        monkeypatch.setattr(guard, "events", lambda: next(answers, None) or read())
        make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="7").ensure()
        assert guard.ensure().bucket_count == 7

    def test_a_race_in_apply_is_decided_anew(self, make_guard, monkeypatch):
        guard = make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="3")
        make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="1").ensure()
        before = guard.events()
        make_guard().apply(ViewConfiguration(HOUR, 5))
        read = guard.events
        answers = iter([before])
        monkeypatch.setattr(guard, "events", lambda: next(answers, None) or read())
        with pytest.raises(Refused, match="may not decrease: stored 5, wanted 3"):
            guard.apply()

    def test_check_shows_both_and_changes_nothing(self, make_guard):
        make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="3").ensure()
        verdict = make_guard(MAILSLICE_QUEUE_BUCKET_COUNT="2").check()
        assert (verdict.stored, verdict.requested) == (
            ViewConfiguration(HOUR, 3),
            ViewConfiguration(HOUR, 2),
        )
        assert "may not decrease" in verdict.why_refused
        assert (verdict.recorded_strategy, verdict.same_strategy) == (None, True)
        assert len(make_guard().events()) == 1

    def test_check_compares_the_storage_strategy_that_james_recorded(self, make_guard):
        guard = make_guard()
        guard.ensure()
        text = (
            '{"eventId":0,"aggregateKey":"BlobStoreStorageStrategyConfiguration",'
            '"type":"storage-strategy-changed","storageStrategy":"DEDUPLICATION"}'
        )
        guard._tables.event_store.append(events.STORAGE_STRATEGY_AGGREGATE, 0, text)
        assert (guard.check().recorded_strategy, guard.check().same_strategy) == (
            BlobStrategy.DEDUPLICATION,
            False,
        )
        assert make_guard(MAILSLICE_BLOB_STRATEGY="deduplication").check().same_strategy

    def test_shared_blobs_are_refused_beside_a_james_that_deletes_those_of_each_mail(
        self, make_guard
    ):
        guard = make_guard()
        guard.ensure()
        for event_id, strategy in enumerate(("PASSTHROUGH", "DEDUPLICATION")):
            text = (
                f'{{"eventId":{event_id},"aggregateKey":"BlobStoreStorageStrategyConfiguration",'
                '"type":"storage-strategy-changed",'
                f'"storageStrategy":"{strategy}"}}'
            )
            guard._tables.event_store.append(events.STORAGE_STRATEGY_AGGREGATE, event_id, text)
            if strategy == "PASSTHROUGH":
                with pytest.raises(
                    ConfigurationDiffers,
                    match=r"MAILSLICE_BLOB_STRATEGY=deduplication .* James recorded PASSTHROUGH",
                ):
                    make_guard(MAILSLICE_BLOB_STRATEGY="deduplication").ensure()
            assert make_guard(MAILSLICE_BLOB_STRATEGY="passthrough").ensure()
        assert make_guard(MAILSLICE_BLOB_STRATEGY="deduplication").ensure()

    def test_james_35s_spelling_is_read(self, make_guard):
        guard = make_guard()
        guard.ensure()
        text = (
            '{"type":"cassandra-mail-queue-view-configuration","sliceWindow":"PT10M","eventId":1,'
            '"aggregateKey":"CassandraMailQueueViewConfiguration","bucketCount":2,'
            '"updateBrowseStartPace":7}'
        )
        guard._tables.event_store.append(CONFIGURATION_AGGREGATE, 1, text)
        assert guard.ensure() == ViewConfiguration(timedelta(minutes=10), 2, 7)

    def test_an_event_that_cannot_be_read_is_refused_and_not_written_over(self, make_guard):
        guard = make_guard()
        guard._tables.event_store.append(CONFIGURATION_AGGREGATE, 0, "{}")
        for act in (guard.ensure, guard.apply, guard.check):
            with pytest.raises(Refused, match="cannot be read"):
                act()
        assert guard.events() == [(0, "{}")]
