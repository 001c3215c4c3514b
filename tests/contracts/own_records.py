"""The contract of every store of own records. Runs on Cassandra and on MariaDB.

A subclass gives `own` (OwnRecords) and `name`, which no other test uses.
"""

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.model.mail import QueueName
from mailslice.stores.own.postal_decisions import PostalDecision
from mailslice.stores.own.postal_quarantine import EntryState, PostalEntry
from mailslice.stores.own.runs import RunRow

NOW = datetime(2026, 11, 23, 12, 0, 0, 123000, UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def run_row(queue, run="r1", minutes=0, duty="stuck_mails_postal"):
    return RunRow(
        run=run,
        duty=duty,
        queue=QueueName(queue),
        started=NOW + timedelta(minutes=minutes),
        status="done",
        report='{"words": "ü€😀\'\\\\%s"}',
        who="night shift",
    )


def entry(server, message=7):
    return PostalEntry(
        server=server,
        message=message,
        queued_message=70,
        state=EntryState.NOTED,
        copy_id="c1",
        locked_by="host:a pid:1 thread:2 " + "f" * 16,
        locked_at="2026-11-23 11:00:00.123456",
        stage="maybe sent",
        row="{}",
        log_id="mailslice-1",
        noted_at=NOW,
        rcpt_to="zoë@example.org",
    )


class OwnRecordsContract:
    def test_a_run_is_one_row_and_newest_first(self, own, name):
        for run, minutes in (("r1", 1), ("r2", 3), ("r3", 2)):
            own.runs.save(run_row(name, run, minutes), DAY)
        own.runs.save(replace(run_row(name, "r1", 1), status="failed", who=None), DAY)
        listed = own.runs.list("stuck_mails_postal", QueueName(name))
        assert [(row.run, row.status) for row in listed] == [
            ("r2", "done"),
            ("r3", "done"),
            ("r1", "failed"),
        ]
        assert listed[0] == run_row(name, "r2", 3)
        assert own.runs.get("r3") == run_row(name, "r3", 2)
        assert own.runs.get("no such run") is None
        longest = RunRequest("stuck_mails_postal", NO_QUEUE, name.ljust(180, "x")).run
        own.runs.save(run_row(name, longest), DAY)
        assert own.runs.get(longest).run == longest
        own.runs.delete(run_row(name, longest))
        own.runs.delete(run_row(name, "r2", 3))
        assert [row.run for row in own.runs.list(queue=QueueName(name), limit=1)] == ["r3"]
        (newest,) = [rows for rows in own.runs.newest(1) if rows[0].queue == name]
        assert [row.run for row in newest] == ["r3"]

    def test_the_newest_runs_of_some_duties_and_queues(self, own, name):
        queues = [QueueName(f"{name}-{number}") for number in range(45)]
        for number, queue in enumerate(queues):
            for duty in ("queue_size", "queue_audit") if number % 3 else ():
                for run in range(3):
                    own.runs.save(run_row(queue, f"r{run}", run, duty), DAY)
        own.runs.save(run_row(name, duty="queue_size"), DAY)
        duties = ("queue_size", "queue_audit", "blob_gc")
        newest = list(own.runs.newest(2, duties, queues))
        assert {(rows[0].duty, rows[0].queue) for rows in newest} == {
            (duty, queue)
            for duty in duties[:2]
            for number, queue in enumerate(queues)
            if number % 3
        }
        assert {tuple(row.run for row in rows) for rows in newest} == {("r2", "r1")}
        assert list(own.runs.newest(2, duties, [])) == []
        of_test = {queue for queue in own.runs.queues("queue_audit") if queue.startswith(name)}
        assert of_test == {queue for number, queue in enumerate(queues) if number % 3}
        assert name in own.runs.queues("queue_size")

    def test_a_row_ends_by_itself(self, own, name):
        own.runs.save(run_row(name, "short"), timedelta(seconds=1))
        own.runs.save(run_row(name, "long"), timedelta(days=100_000))
        assert own.locks.acquire(name, "a", timedelta(seconds=1)) == "a"
        time.sleep(2.2)
        assert [row.run for row in own.runs.list(queue=QueueName(name))] == ["long"]
        assert own.runs.get("short") is None
        assert own.locks.holder(name) is None
        assert not own.locks.renew(name, "a", MINUTE)
        assert own.locks.acquire(name, "b", MINUTE) == "b"

    def test_a_lock_has_one_owner(self, own, name):
        assert own.locks.acquire(name, "a", timedelta(seconds=2)) == "a"
        assert own.locks.acquire(name, "b", MINUTE) == "a"
        assert own.locks.renew(name, "a", MINUTE)
        assert (own.locks.renew(name, "b", MINUTE), own.locks.release(name, "b")) == (False, False)
        time.sleep(2.5)
        assert own.locks.holder(name) == "a"
        assert own.locks.acquire(name, "a", MINUTE) == "a"
        assert own.locks.release(name, "a")
        assert not own.locks.release(name, "a")
        assert own.locks.acquire(name, "b", MINUTE) == "b"

    def test_what_was_stored_first_stays_until_it_is_changed(self, own, name):
        assert own.locks.first(name, "1") == "1"
        assert own.locks.first(name, "2") == "1"
        assert not own.locks.change(name, "2", "3")
        assert own.locks.change(name, "1", "3")
        assert own.locks.holder(name) == "3"

    def test_of_eight_who_want_a_lock_one_gets_it(self, own, name):
        owners = []

        def take(owner):
            owners.append(own.locks.acquire(name, owner, MINUTE))

        threads = [threading.Thread(target=take, args=(str(number),)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(owners) == 8
        assert len(set(owners)) == 1

    def test_an_entry_is_changed_by_one_of_two(self, own, server):
        table = own.postal_quarantine
        assert table.get(server, 7) is None
        added = table.add(entry(server))
        assert replace(added, version="") == entry(server)
        assert table.get(server, 7) == added
        assert table.add(entry(server)) == added
        kept = table.replace(added, replace(added, state=EntryState.KEPT, closed_at=NOW, size=3))
        assert table.get(server, 7) == kept
        assert table.replace(added, replace(added, state=EntryState.RELEASING)) is None
        assert not table.remove(added)
        assert [one for one in table.list() if one.server == server] == [kept]
        assert table.remove(kept)
        assert table.remove(kept)  # a missing row does not fail
        assert table.replace(kept, kept) is None

    def test_a_decision_is_kept_once_with_those_of_its_day_the_newest_first(self, own, server):
        def decided(minutes):
            return PostalDecision(
                server=server,
                message=minutes,
                queued_message=1,
                holder="h",
                age=timedelta(minutes=11, milliseconds=5),
                stage="answered",
                verdict="stuck",
                action="completed",
                why="why",
                decided=NOW - timedelta(minutes=minutes),
                log_id=f"{server}-{minutes}",
                run=f"run {server} {minutes // 1000}",
            )

        for minutes in (0, 800, 5000):
            own.postal_decisions.save(decided(minutes), DAY)
            own.postal_decisions.save(decided(minutes), DAY)
        for since, until, minutes in (
            (NOW - 2 * DAY, NOW, (0, 800)),
            (NOW - 800 * MINUTE, NOW - MINUTE, (800,)),
            (NOW - 799 * MINUTE, NOW - MINUTE, ()),
            (datetime.min.replace(tzinfo=UTC), NOW, (0, 800, 5000)),
        ):
            listed = own.postal_decisions.list(since, until)
            assert [row for row in listed if row.server == server] == list(map(decided, minutes))
