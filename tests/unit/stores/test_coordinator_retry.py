"""A page that one node did not give is asked of another, once for each that failed, and what may
not be sent twice never is.
"""

import threading
import time
from types import SimpleNamespace

import pytest
from cassandra import InvalidRequest, OperationTimedOut, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable, ResultSet
from cassandra.policies import FallthroughRetryPolicy
from cassandra.protocol import ServerError
from cassandra.query import PreparedStatement

from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.settings import CassandraSettings
from mailslice.stores.cassandra import connection, coordinator_retry
from mailslice.stores.cassandra.session import CassandraSession

READ, WRITE = "SELECT a FROM ks.t WHERE b = ?", "INSERT INTO ks.t (a) VALUES (?)"
SLOW = OperationTimedOut({"a": "slow"}, last_host="a")
FEW = Unavailable("few", consistency=6, required_replicas=2, alive_replicas=1)
NOT_YET = NoHostAvailable(
    "none", {"a": ServerError(0, "java.lang.IllegalArgumentException: Unknown CF 8603d040", None)}
)


class Future:
    """One request and its answer, which is there at once."""

    def __init__(self, answer, timestamp):
        self.message = SimpleNamespace(timestamp=timestamp)
        self._answer, self._paging_state = answer if isinstance(answer, tuple) else (answer, None)
        self._col_names = self._col_types = None

    @property
    def has_more_pages(self):
        return self._paging_state is not None

    def result(self):
        if isinstance(self._answer, Exception):
            raise self._answer
        return ResultSet(self, self._answer)

    def add_callbacks(self, rows, error):
        (error if isinstance(self._answer, Exception) else rows)(self._answer)
        if (late := getattr(self._answer, "late", None)) is not None:
            rows(late)


class SlowButThere(OperationTimedOut):
    """The driver gives up on a request whose rows come after all: it calls back twice."""

    def __init__(self, late):
        super().__init__({"a": "slow"}, last_host="a")
        self.late = late


class Driver:
    """A session of the driver over nodes by name; `answers` are given one after the other, and what
    was asked is in `asked`.
    """

    def __init__(self, nodes="abc", *answers):
        self.nodes, self.answers, self.asked, self.pinged = list(nodes), list(answers), [], []
        self.cluster = SimpleNamespace(
            metadata=SimpleNamespace(all_hosts=lambda: list(nodes)),
            timestamp_generator=coordinator_retry.Timestamps(),
            connect=lambda: self,
        )
        self.tables = [("t",)]
        self.mute = ()
        self.prepare_errors = []

    def get_pool_state(self):
        return dict.fromkeys(self.nodes)

    def prepare(self, cql):
        if self.prepare_errors:
            raise self.prepare_errors.pop(0)
        return PreparedStatement([], b"id", None, cql, None, 4, [], None)

    def execute(self, cql, params):
        assert " FROM system_schema.tables " in cql
        assert params == ["ks", "t"]
        return self.tables

    def execute_async(
        self,
        statement,
        params=None,
        *,
        timeout=None,
        host=None,
        paging_state=None,
        execution_profile=None,
    ):
        stamp = self.cluster.timestamp_generator()
        if "system.local" in str(statement):
            self.pinged.append((host, timeout))
            return Future(SLOW if host in self.mute else [("local",)], stamp)
        self.asked.append((params, paging_state, host, stamp, execution_profile))
        self.timeout = timeout
        return Future(self.answers.pop(0), stamp)


@pytest.fixture(autouse=True)
def naps(monkeypatch):
    """Nobody sleeps; for how long they would have."""
    slept = []
    monkeypatch.setattr(
        "tenacity.nap.time", SimpleNamespace(sleep=slept.append)
    )  # not of the whole process: its other threads sleep, too
    return slept


@pytest.fixture
def opened(monkeypatch):
    """A session over such a driver."""

    def make(*answers, nodes="abc", **changes):
        driver = Driver(nodes, *answers)
        for name, value in changes.items():
            setattr(driver, name, value)
        monkeypatch.setattr(connection, "connect", lambda _: (driver.cluster, driver))
        return CassandraSession(CassandraSettings()), driver

    return make


@pytest.mark.parametrize(
    ("cql", "seconds"),
    [("CREATE TABLE ks.t (a int)", 60), (" ALTER TABLE ks.t ADD b int", 60), (READ, 10)],
)
def test_a_change_of_the_schema_has_more_time_than_a_request(opened, cql, seconds):
    """Cassandra makes one at a time: beside others each takes seconds."""
    session, driver = opened([])
    session.execute(cql)
    assert driver.timeout == seconds


def test_an_answer_that_does_not_come_is_asked_of_a_node_that_answers(opened):
    session, driver = opened(SLOW, ReadTimeout("late"), [(7,)], mute=("b",))
    assert session.execute(session.prepare(READ), [1]) == [(7,)]
    assert [asked[:2] for asked in driver.asked] == [([1], None)] * 3
    assert [asked[2] for asked in driver.asked][:2] == [None, "c"]  # a let us wait, b says nothing
    assert driver.asked[2][2] in {"a", "c"}


@pytest.mark.parametrize("ordered", [False, True])
def test_a_page_that_failed_is_asked_again_and_no_page_is_given_twice(opened, ordered):
    session, driver = opened(([(1,)], b"1"), SLOW, ([(2,)], b"2"), SLOW, FEW, [(3,)], SLOW, [(4,)])
    pages = list(session.map(session.prepare(READ), [["x"], ["y"]], in_flight=1, ordered=ordered))
    assert pages == [(["x"], [(1,)]), (["x"], [(2,)]), (["x"], [(3,)]), (["y"], [(4,)])]
    assert [asked[1] for asked in driver.asked] == [None, b"1", b"1", b"2", b"2", b"2", None, None]
    assert [asked[2] is None for asked in driver.asked] == [
        True,
        True,
        False,
        True,
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("ordered", [False, True])
def test_rows_that_come_after_their_time_out_are_no_page(opened, ordered):
    session, driver = opened(
        SlowButThere([(1,)]), ([(1,)], b"1"), ([(2,)], b"2"), [(3,)], [(4,)], [(5,)]
    )
    pages = list(
        session.map(session.prepare(READ), [["x"], ["y"], ["z"]], in_flight=1, ordered=ordered)
    )
    assert pages == [
        (["x"], [(1,)]),
        (["x"], [(2,)]),
        (["x"], [(3,)]),
        (["y"], [(4,)]),
        (["z"], [(5,)]),
    ]
    assert driver.answers == []


def test_a_node_that_said_nothing_is_not_asked_for_a_while(opened):
    session, driver = opened(SLOW, SLOW, SLOW, [(7,)], mute=("b",))
    assert session.execute(session.prepare(READ), [1]) == [(7,)]
    assert [node for node, _ in driver.pinged] == ["a", "b", "c", "a", "c", "a", "c"]


def test_what_is_sent_to_one_node_is_not_sent_there_again_by_the_driver(opened):
    session, driver = opened(SLOW, [(7,)])
    session.execute(session.prepare(READ), [1])
    assert [asked[4] for asked in driver.asked] == [None, coordinator_retry.PINNED]


def test_pages_as_bytes_are_asked_again_too(opened):
    session, driver = opened(["page"], SLOW, ["page 2"])
    assert list(session.packed.pages(session.prepare(READ), [["x"], ["y"]], 1)) == [
        (["x"], "page"),
        (["y"], "page 2"),
    ]
    assert [asked[2] is None for asked in driver.asked] == [True, True, False]


def test_too_few_nodes_are_believed_after_a_few_tries(opened, naps):
    session, driver = opened(*[FEW] * 10)
    with pytest.raises(StoreUnavailable, match="few"):
        session.execute(session.prepare(READ), [1])
    assert len(driver.asked) == coordinator_retry.REFUSALS + 1
    assert 1 < sum(naps) < 5


def test_who_is_slow_is_tried_until_the_patience_is_over(opened, monkeypatch):
    monkeypatch.setattr(coordinator_retry, "CONVICTION_SECONDS", 0.2)
    session, driver = opened(*[SLOW] * 10_000)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="OperationTimedOut"):
        list(session.map(session.prepare(READ), [[1]]))
    assert time.monotonic() - began >= 0.2
    assert len(driver.asked) > coordinator_retry.REFUSALS + 1


def test_nobody_waits_for_nodes_of_which_none_answers(opened):
    session, driver = opened(*[SLOW] * 10, mute="abc")
    with pytest.raises(StoreUnavailable, match="no node answers"):
        session.execute(session.prepare(READ), [1])
    assert len(driver.asked) == 1
    assert len(driver.pinged) == 3 * (coordinator_retry.REFUSALS + 1)
    assert {timeout for _, timeout in driver.pinged} == {2.0}


def test_one_node_is_asked_once(opened):
    session, driver = opened(SLOW, FEW, nodes="a")
    for words in ("slow", "few"):
        with pytest.raises(StoreUnavailable, match=words):
            session.execute(session.prepare(READ), [1])
    assert len(driver.asked) == 2


def test_what_is_not_idempotent_is_sent_once_and_the_driver_sends_it_to_nobody_else(opened):
    session, driver = opened(SLOW, SLOW, NOT_YET)
    claim = session.prepare("INSERT INTO ks.t (a) VALUES (?) IF NOT EXISTS", idempotent=False)
    assert isinstance(claim.retry_policy, FallthroughRetryPolicy)
    assert session.prepare(READ).retry_policy is None
    for ask in (
        session.execute,
        lambda *asked: session.run_many(asked[0], [asked[1]]),
        session.execute,
    ):
        with pytest.raises(StoreUnavailable):
            ask(claim, [1])
    assert len(driver.asked) == 3


def test_a_write_that_is_repeated_has_the_time_of_its_first_try(opened):
    session, driver = opened(SLOW, [], [])
    session.execute(session.prepare(WRITE), [1])
    session.execute(session.prepare(WRITE), [1])
    first, repeated, other = (asked[3] for asked in driver.asked)
    assert first == repeated < other


def test_write_times_are_held_for_one_thread_only():
    times = coordinator_retry.Timestamps()
    others = []
    with times.pinned(5):
        assert times() == 5
        thread = threading.Thread(target=lambda: others.append(times()))
        thread.start()
        thread.join()
    assert 5 < others[0] < times() < times()


@pytest.mark.parametrize("nodes", ["a", "abc"])
def test_a_table_in_the_making_is_waited_for(opened, nodes, naps):
    unknown = InvalidRequest("unconfigured table t")
    session, driver = opened(
        NOT_YET, NOT_YET, [(1,)], nodes=nodes, prepare_errors=[unknown, unknown]
    )
    assert session.execute(session.prepare(READ), [1]) == [(1,)]
    assert len(driver.asked) == 3
    assert len(naps) == 4


def test_a_table_that_is_not_there_is_not(opened, naps):
    session, _ = opened(prepare_errors=[InvalidRequest("unconfigured table t")], tables=[])
    with pytest.raises(BadSetting, match="unconfigured table"):
        session.prepare(READ)
    assert naps == []


def test_a_table_that_never_comes_is_waited_for_so_long(opened, monkeypatch):
    monkeypatch.setattr(coordinator_retry, "SCHEMA_DELAY_SECONDS", 0.1)
    session, driver = opened(*[NOT_YET] * 10_000, nodes="a")
    with pytest.raises(StoreUnavailable, match="Unknown CF"):
        session.execute(session.prepare(READ), [1])
    assert len(driver.asked) > 2


@pytest.mark.parametrize(
    ("cql", "named"),
    [
        ('SELECT "A" FROM "Ks"."T" WHERE token("A") > ?', ["Ks", "T"]),
        ("select a from KS.T where b = ?", ["ks", "t"]),
        ("UPDATE ks.t SET a = ?", ["ks", "t"]),
        ("DELETE FROM ks.t USING TIMESTAMP ? WHERE a = ?", ["ks", "t"]),
        ("INSERT INTO ks.t (a) VALUES (?)", ["ks", "t"]),
        ("TRUNCATE t", None),
    ],
)
def test_the_table_that_a_statement_names(cql, named):
    asked = []
    driver = SimpleNamespace(execute=lambda _, params: asked.append(params) or [("t",)])
    assert coordinator_retry.CoordinatorRetry(driver)._has_schema(cql) is (named is not None)
    assert asked == ([named] if named else [])


def test_making_a_table_waits_for_its_keyspace():
    asked = []
    driver = SimpleNamespace(
        execute=lambda query, params: asked.append((query.split()[3], params)) or [("ks",)]
    )
    assert coordinator_retry.CoordinatorRetry(driver)._has_schema(
        "CREATE TABLE IF NOT EXISTS Ks.t (a text PRIMARY KEY)"
    )
    assert asked == [("system_schema.keyspaces", ["ks"])]
