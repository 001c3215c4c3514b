"""Users work on real tables while the duty reads and corrects.

In the end every counter is right, or off by what it was off before (I9).

No clock decides: `settle` and the pause of the plan wait here until whatever had begun has ended,
which is what they are for.
"""

import random
import threading
import uuid
from datetime import timedelta
from functools import partial

from mailslice.stores.cassandra.mailboxes import Counters
from tests.services.duties.counter_repair.in_process import plain_survey


class User(threading.Thread):
    """Appends, deletes and reads mail in some mailboxes, in James' order of writes, until it is
    told to stop.
    """

    def __init__(self, james, mailboxes, seed):
        super().__init__(daemon=True)
        self._james, self._mailboxes, self._chance = james, mailboxes, random.Random(seed)
        self._messages = {
            mailbox: {uid: (row[0], row[1]) for uid, row in james.projection(mailbox).items()}
            for mailbox in mailboxes
        }
        self._next = dict.fromkeys(mailboxes, 100)
        self.ended, self.stopped, self.done = threading.Condition(), False, 0

    def run(self):
        while not self.stopped:
            mailbox = self._chance.choice(self._mailboxes)
            kind = self._chance.choice(
                [self._append, self._expunge, self._read]
                if self._messages[mailbox]
                else [self._append]
            )
            kind(mailbox)
            with self.ended:
                self.done += 1
                self.ended.notify_all()
            if self._chance.random() < 0.2:
                self.wait_a_little()

    def wait_a_little(self):
        threading.Event().wait(self._chance.random() / 5)

    def wait_for_the_end_of_what_began(self):
        with self.ended:
            before = self.done
            assert self.ended.wait_for(
                lambda: self.done > before or not self.is_alive(), timeout=60
            )

    def _modseq(self, mailbox):
        self._next[mailbox] += 1
        self._james.give_modseq(mailbox, self._next[mailbox])
        return self._next[mailbox]

    def _append(self, mailbox):
        uid = self._modseq(mailbox)
        message = self._james.message(mailbox, uid, tables=("imapuidtable",))
        steps = [
            lambda: self._james.message(mailbox, uid, message=message, tables=("messageidtable",)),
            lambda: self._james.add(mailbox, 1, 1),
        ]
        self._chance.shuffle(steps)
        for step in steps:
            step()
        self._messages[mailbox][uid] = (message, False)

    def _expunge(self, mailbox):
        uid = self._chance.choice(sorted(self._messages[mailbox]))
        message, seen = self._messages[mailbox].pop(uid)
        for table in self._chance.sample(("imapuidtable", "messageidtable"), 2):
            self._james.remove(mailbox, uid, message, tables=(table,))
        self._james.add(mailbox, -1, 0 if seen else -1)

    def _read(self, mailbox):
        uid = self._chance.choice(sorted(self._messages[mailbox]))
        message, seen = self._messages[mailbox][uid]
        modseq = self._modseq(mailbox)
        for table in ("imapuidtable", "messageidtable"):
            self._james.message(
                mailbox, uid, message=message, seen=not seen, modseq=modseq, tables=(table,)
            )
        self._james.add(mailbox, 0, 1 if seen else -1)
        self._messages[mailbox][uid] = (message, not seen)


def drift(james, mailbox):
    """Stored less what is there, when nobody is at work."""
    rows = james.execute("SELECT mailboxid, flagseen FROM {ks}.imapuidtable")
    seen = [row[1] for row in rows if row[0] == mailbox]
    stored = james.stores.mailboxes.counters(mailbox)
    return Counters(stored.count - len(seen), stored.unseen - sum(not each for each in seen))


def test_while_users_work_every_counter_ends_right_or_as_wrong_as_it_was(james):
    planted = [(2, 1), (-1, 0), (0, 3), (5, -2)]
    busy = [james.mailbox(messages=3, seen=1, add=each) for each in planted * 2]
    quiet = [james.mailbox(messages=3, seen=1, add=each) for each in planted]
    users = [User(james, busy[at::3], seed) for at, seed in enumerate((uuid.uuid4().int, 2, 3))]

    def wait(_):
        for user in users:
            user.wait_for_the_end_of_what_began()

    slow = partial(plain_survey, operation=timedelta(seconds=1))
    james = james.using(sleep=wait, survey=slow)
    for user in users:
        user.start()
    try:
        reports = [
            james.run(mailboxes=[str(each) for each in [*busy, *quiet]], settle="1h")
            for _ in range(3)
        ]
    finally:
        for user in users:
            user.stopped = True
            user.join(60)
    assert sum(user.done for user in users) > 20
    assert [drift(james, mailbox) for mailbox in quiet] == [Counters(0, 0)] * 4
    wrong = {mailbox: drift(james, mailbox) for mailbox in busy}
    assert all(
        wrong[mailbox] in {Counters(0, 0), Counters(*each)}
        for mailbox, each in zip(busy, planted * 2, strict=True)
    ), wrong
    assert reports[0]["applied"] >= 4
    last = james.run(mailboxes=[str(each) for each in [*busy, *quiet]], settle="1ms")
    assert (last["wrong"], last["applied"]) == (
        sum(each != Counters(0, 0) for each in wrong.values()),
    ) * 2
    assert {drift(james, mailbox) for mailbox in [*busy, *quiet]} == {Counters(0, 0)}
