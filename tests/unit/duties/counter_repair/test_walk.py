"""A random walk over James' operations, each broken into single writes.

Operations run between and inside both reads. What is applied is right when all have ended (I9).

Two assumptions. `settle`: what began before the first read was over has ended when the second read
begins. The pause after the modSeqs: what took one before they were read has ended when the rest is
read.
"""

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from mailslice.duties.counter_repair import decide
from mailslice.duties.counter_repair.fingerprints import MessageDigest, ticks
from mailslice.duties.counter_repair.planned import Drift
from mailslice.stores.cassandra.mailboxes import Counters

FIRST_READ = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OLD, NEW = ticks(FIRST_READ) - 10, ticks(FIRST_READ) + 10


class World:
    """One mailbox. Rows of the truth: (message, uid) -> (seen, modSeq, time of the message id)."""

    def __init__(self, chance, drift):
        self.chance = chance
        self.truth, self.projection = {}, {}
        self.given = self.uid = self.count = self.unseen = 0
        self.now = OLD
        self.pace = chance.choice([2, 3, 4])
        self.running = []
        for _ in range(chance.randrange(4)):
            self.finish(self.append())
        self.count = len(self.truth) + drift[0]
        self.unseen = sum(not row[0] for row in self.truth.values()) + drift[1]

    def append(self):
        """A new message, or a copy: modSeq, truth, then projection and counter in any order."""
        self.given += 1
        self.uid += 1
        message, uid, modseq, seen = self.uid, self.uid, self.given, self.chance.random() < 0.5
        row = (seen, modseq, self.chance.choice([OLD, self.now]))
        yield
        self.truth[message, uid] = row
        yield
        yield from self.any_order(
            lambda: self.projection.update({uid: message}), lambda: self.add(1, not seen)
        )

    def expunge(self):
        """Both rows in any order, then the counter; no modSeq is given."""
        message, uid = self.chance.choice(sorted(self.truth))
        row = self.truth[message, uid]
        yield from self.any_order(
            lambda: self.truth.pop((message, uid), None), lambda: self.projection.pop(uid, None)
        )
        self.add(-1, -(not row[0]))

    def flag(self):
        """The flag seen is turned: modSeq, truth, then the counter."""
        self.given += 1
        modseq, (message, uid) = self.given, self.chance.choice(sorted(self.truth))
        yield
        seen, _, time = self.truth[message, uid]
        self.truth[message, uid] = (not seen, modseq, time)
        yield
        self.add(0, 1 if seen else -1)

    def any_order(self, *steps):
        for step in self.chance.sample(steps, len(steps)):
            step()
            yield

    def add(self, count, unseen):
        self.count += count
        self.unseen += unseen

    def finish(self, operation):
        for _ in operation:
            pass

    def begin(self):
        """Begin one more operation; on a row only where no other is at work.

        James locks nobody, but nobody expunges twice.
        """
        busy = self.running or not self.truth
        kind = self.append if busy else self.chance.choice([self.append, self.expunge, self.flag])
        operation = kind()
        next(operation, None)
        self.running.append(operation)

    def walk(self, *, may_begin=True):
        """Some single writes of operations that are under way; some begin."""
        for _ in range(self.chance.randrange(self.pace)):
            if may_begin and self.chance.random() < 0.4:
                self.begin()
            elif self.running:
                operation = self.chance.choice(self.running)
                try:
                    next(operation)
                except StopIteration:
                    self.running.remove(operation)

    def end_appends(self):
        """Whatever took a modSeq has ended."""
        for operation in [each for each in self.running if each.__name__ != "expunge"]:
            self.running.remove(operation)
            self.finish(operation)

    def settle(self):
        """Whatever began has ended."""
        while self.running:
            self.finish(self.running.pop())


def looks(rows):
    first = second = 0
    for row in rows.items():
        first ^= hash(row)
        second ^= hash((row, "other"))
    times = [row[2] for row in rows.values()]
    return MessageDigest(
        len(rows),
        sum(not row[0] for row in rows.values()),
        max([row[1] for row in rows.values()], default=0),
        max(times, default=0),
        first,
        second,
    )


def scanned(world):
    """The first read: the modSeq, then parts of the truth and the counter, one by one.

    James works meanwhile.
    """
    given_modseq = world.given
    world.end_appends()
    world.walk()
    rows, parts = {}, [0, 1, 2, "counter"]
    world.chance.shuffle(parts)
    stored = Counters(0, 0)
    for part in parts:
        if part == "counter":
            stored = Counters(world.count, world.unseen)
        else:
            rows |= {key: row for key, row in world.truth.items() if key[0] % 3 == part}
        world.walk()
    return Drift.of(UUID(int=1), stored, looks(rows), given_modseq), set(rows)


def read_again(world, unprojected):
    """The second read: the counter, the projection's ids, the truth, the modSeq.

    The truth is read of these ids and of those known to be in it alone.
    """
    stored = Counters(world.count, world.unseen)
    world.walk()
    ids = set(world.projection.values()) | unprojected
    rows = {}
    for part in (0, 1):
        world.walk()
        rows |= {
            key: row for key, row in world.truth.items() if key[0] in ids and key[0] % 2 == part
        }
    world.walk()
    return stored, looks(rows), world.given


def one_run(chance, drift):
    """What the run did, and the drift that is left when all is over."""
    world = World(chance, drift)
    for _ in range(chance.randrange(3)):
        world.begin()
    world.walk()
    world.now = NEW
    planned, seen = scanned(world)
    world.settle()
    world.walk()
    unprojected = {message for message, uid in seen if uid not in world.projection}
    stored, looked, given_modseq = read_again(world, unprojected)
    why = decide.refused(planned, stored, looked, given_modseq, FIRST_READ)
    world.walk()
    if why is None and Counters(world.count, world.unseen) == stored:
        world.add(planned.add.count, planned.add.unseen)
        why = "applied"
    world.settle()
    return why, (
        world.count - len(world.truth),
        world.unseen - sum(not row[0] for row in world.truth.values()),
    )


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.tuples(st.integers(-2, 2), st.integers(-2, 2)))
def test_whatever_james_does_meanwhile_a_drift_is_corrected_exactly_or_left_as_it_was(
    chance, drift
):
    why, left = one_run(chance, drift)
    assert left == ((0, 0) if why == "applied" else drift)


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.tuples(st.integers(1, 3), st.integers(-2, 2)))
def test_in_a_quiet_mailbox_every_drift_is_corrected(chance, drift):
    world = World(chance, drift)
    world.walk = lambda **_: None
    planned, _ = scanned(world)
    assert decide.refused(planned, *read_again(world, set()), FIRST_READ) is None
