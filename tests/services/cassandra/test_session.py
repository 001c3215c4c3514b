"""The session: what it gives, and how it fails."""

import asyncio
import socket
import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import uuid4

import pytest
from cassandra import DriverException
from cassandra.cluster import Cluster
from cassandra.io.libevreactor import LibevConnection
from cassandra.query import UNSET_VALUE

from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.settings import CassandraSettings
from mailslice.stores.cassandra.session import PAGE_ROWS, CassandraSession
from mailslice.worker.io.cassandra_bridge import Bridge
from tests.services.cassandra.fake_servers import Wire, listening, mute, refusing_password

pytestmark = pytest.mark.new_keyspaces

COUNT = "SELECT release_version FROM system.local WHERE key = ?"


@pytest.fixture(scope="module")
def session(fresh_module):
    with CassandraSession(fresh_module.settings.cassandra) as session:
        session.execute(
            f"CREATE TABLE {session.settings.keyspace}.numbers "
            "(half int, number int, PRIMARY KEY (half, number))"
        )
        insert = session.prepare(
            f"INSERT INTO {session.settings.keyspace}.numbers (half, number) VALUES (?, ?)"
        )
        session.run_many(insert, ([number % 2, number] for number in range(2 * PAGE_ROWS + 4000)))
        yield session


@pytest.fixture
def numbers(session):
    return session.prepare(f"SELECT number FROM {session.settings.keyspace}.numbers WHERE half = ?")


def at(port: int, **changes: object) -> CassandraSettings:
    return CassandraSettings(contact_points=("127.0.0.1",), port=port, **changes)


def test_connections_are_on_libev(session):
    connections = [
        connection
        for holder in session.cluster.get_connection_holders()
        for connection in holder.get_connections()
    ]
    assert connections
    assert all(isinstance(connection, LibevConnection) for connection in connections)


def test_statements_have_the_consistency_of_the_settings(fresh_module):
    with CassandraSession(
        fresh_module.but(MAILSLICE_CASSANDRA_CONSISTENCY="all").settings.cassandra
    ) as session:
        future = session.submit(session.prepare(COUNT), ["local"])
        future.result()
        assert future.message.consistency_level == 5  # ALL


def test_where_rows_are_is_computed_from_the_keyspaces_where_there_are_several_nodes(
    fresh_module, session, monkeypatch
):
    assert session.cluster.metadata.keyspaces == {}
    monkeypatch.setattr("mailslice.stores.cassandra.connection.has_several_nodes", lambda _: True)
    with CassandraSession(fresh_module.settings.cassandra) as several:
        assert several.settings.keyspace in several.cluster.metadata.keyspaces


def test_nodes_that_do_not_agree_on_the_schema_yet_stop_no_session(fresh_module, monkeypatch):
    def disagree(_, max_schema_agreement_wait=None):
        assert max_schema_agreement_wait == 0
        raise DriverException("Schema metadata was not refreshed. See log for details.")

    monkeypatch.setattr("mailslice.stores.cassandra.connection.has_several_nodes", lambda _: True)
    monkeypatch.setattr(Cluster, "refresh_schema_metadata", disagree)
    with CassandraSession(fresh_module.settings.cassandra) as several:
        assert len(several.execute(several.prepare(COUNT), ["local"])) == 1


def test_a_statement_is_prepared_once(session):
    assert session.prepare(COUNT) is session.prepare(COUNT)


def test_pages_come_whole_and_in_order_of_what_was_asked(session, numbers):
    pages = list(session.map(numbers, [[1], [7], [0]], in_flight=2, ordered=True))
    assert [params[0] for params, _ in pages] == [1, 1, 7, 0, 0]
    assert [row[0] for params, rows in pages if params == [1] for row in rows] == list(
        range(1, 14000, 2)
    )
    assert [row[0] for params, rows in pages if params == [0] for row in rows] == list(
        range(0, 14000, 2)
    )
    assert max(len(rows) for _, rows in pages) == PAGE_ROWS


def test_pages_as_they_come_are_the_same_rows(session, numbers):
    found = [row[0] for _, rows in session.map(numbers, [[0], [1]], in_flight=8) for row in rows]
    assert sorted(found) == list(range(14000))


def test_an_unpaged_statement_gives_all_rows_in_one_answer(session, numbers):
    unpaged = session.prepare(numbers.query_string, paged=False)
    assert [len(rows) for _, rows in session.map(unpaged, [[1]])] == [7000]
    assert session.prepare(numbers.query_string) is numbers


def test_params_are_drawn_only_as_far_as_needed(session, numbers):
    drawn = []

    def params():
        for number in range(1000):
            drawn.append(number)
            yield [100 + number]

    for ordered in (False, True):
        drawn.clear()
        run = session.map(numbers, params(), in_flight=4, ordered=ordered)
        next(run)
        run.close()
        assert len(drawn) <= 8


def test_the_first_error_is_raised_and_what_came_before_it_is_given(session):
    failing = session.prepare(
        f"SELECT number FROM {session.settings.keyspace}.numbers WHERE half = ? LIMIT ?"
    )
    run = session.map(failing, [[0, 1], [0, 0]], in_flight=1)
    assert next(run) == ([0, 1], [(0,)])
    with pytest.raises(BadSetting, match="refuses a statement"):
        next(run)


def test_an_error_while_drawing_params_is_raised_as_it_is(session, numbers):
    def params():
        yield [0]
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        list(session.map(numbers, params()))


def test_the_skew_is_that_of_the_given_clock(session):
    ((skew, node),) = session.skews()
    assert abs(skew) < timedelta(minutes=1)
    assert str(node) == f"{session.settings.contact_points[0]}:{session.settings.port}"
    ((behind, _),) = session.skews(lambda: datetime.now(UTC) - timedelta(hours=2))
    assert abs(behind - timedelta(hours=2)) < timedelta(minutes=1)


def test_a_missing_keyspace_is_a_setting_to_fix(session):
    with pytest.raises(BadSetting, match="MAILSLICE_CASSANDRA_KEYSPACE"):
        session.prepare("SELECT * FROM no_such_keyspace.t")


def test_a_closed_port_is_named_at_once():
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2"):
        CassandraSession(CassandraSettings(contact_points=("127.0.0.1", "127.0.0.1:2"), port=1))
    assert time.monotonic() - begun < 30


def test_a_server_that_never_answers_is_given_up_in_time():
    with listening(mute) as port:
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}"):
            CassandraSession(at(port))
        assert time.monotonic() - begun < 45


def test_a_name_that_is_no_host_is_named():
    with pytest.raises(StoreUnavailable, match=r"no-such-host\.invalid"):
        CassandraSession(CassandraSettings(contact_points=("no-such-host.invalid",)))


@pytest.mark.parametrize("given", [{"username": "nobody", "password": "wrong"}, {}])
def test_refused_credentials_name_the_settings_and_never_the_password(given):
    with (
        listening(refusing_password) as port,
        pytest.raises(
            BadSetting, match="MAILSLICE_CASSANDRA_USERNAME, MAILSLICE_CASSANDRA_PASSWORD"
        ) as raised,
    ):
        CassandraSession(at(port, **given))
    assert f"127.0.0.1:{port}" in str(raised.value)
    assert "wrong" not in str(raised.value)


def test_an_unknown_datacenter_is_refused_with_those_that_are(fresh_module):
    with pytest.raises(BadSetting, match=r"MAILSLICE_CASSANDRA_DATACENTER='nowhere'.*datacenter1"):
        CassandraSession(
            fresh_module.but(MAILSLICE_CASSANDRA_DATACENTER="nowhere").settings.cassandra
        )


def test_the_right_datacenter_is_taken(fresh_module):
    with CassandraSession(
        fresh_module.but(MAILSLICE_CASSANDRA_DATACENTER="datacenter1").settings.cassandra
    ) as session:
        assert len(session.execute(session.prepare(COUNT), ["local"])) == 1


def until_it_fails(session: CassandraSession) -> None:
    """A cut is noticed by the driver's own thread: one or two statements may still be answered."""
    for _ in range(100):
        session.execute(session.prepare(COUNT), ["local"])


@pytest.mark.parametrize("fault", ["cut", "hold"])
def test_a_store_that_dies_in_the_middle_fails_within_30_seconds(fresh_module, fault):
    settings = fresh_module.settings.cassandra
    wire = Wire(settings.port)
    with (
        listening(wire.serve) as port,
        CassandraSession(
            settings.model_copy(update={"port": port, "timeout": timedelta(seconds=4)})
        ) as session,
    ):
        statement = session.prepare(COUNT)
        assert session.execute(statement, ["local"])
        getattr(wire, fault)()
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}"):
            until_it_fails(session)
        with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}"):
            list(session.map(statement, [["local"]] * 20, in_flight=8))
        assert time.monotonic() - begun < 2 * 4 + 30  # two time-outs, and what a busy machine adds


def until_it_works(session: CassandraSession) -> None:
    end = time.monotonic() + 40
    while True:
        try:
            assert session.execute(session.prepare(COUNT), ["local"])
        except StoreUnavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            return


def test_a_store_that_is_away_for_a_night_is_still_asked_every_few_seconds(session):
    pauses = list(islice(session.cluster.reconnection_policy.new_schedule(), 10_000))
    assert len(pauses) == 10_000
    assert max(pauses) < 6


def test_nodes_that_come_back_at_other_addresses_are_found(fresh_module, monkeypatch):
    settings = fresh_module.settings.cassandra
    addresses, resolve = {"cassandra.test": "127.0.0.2"}, socket.getaddrinfo

    def resolved(host: str, *how: object, **more: object) -> object:
        return resolve(addresses.get(host, host), *how, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    before, after = Wire(settings.port), Wire(settings.port)
    with (
        listening(before.serve, "127.0.0.2") as port,
        listening(after.serve, "127.0.0.3", port),
        CassandraSession(
            settings.model_copy(update={"contact_points": ("cassandra.test",), "port": port})
        ) as session,
    ):
        assert session.execute(session.prepare(COUNT), ["local"])
        addresses["cassandra.test"] = "127.0.0.3"
        before.cut()
        with pytest.raises(StoreUnavailable):
            until_it_fails(session)
        until_it_works(session)
        end = time.monotonic() + 20
        while (known := {str(one.address) for one in session.cluster.metadata.all_hosts()}) != {
            "127.0.0.3"
        } and time.monotonic() < end:
            time.sleep(0.1)
        assert known == {"127.0.0.3"}, "the old address is asked no more"


def test_a_node_that_refuses_a_login_while_it_starts_is_asked_again(fresh_module):
    settings = fresh_module.settings.cassandra
    before, after = Wire(settings.port), Wire(settings.port)
    serving, refused = [before.serve], []

    def serve(connection: socket.socket) -> None:
        refused.extend([connection] * (serving == [refusing_password]))
        serving[0](connection)

    with (
        listening(serve) as port,
        CassandraSession(settings.model_copy(update={"port": port})) as session,
    ):
        assert session.execute(session.prepare(COUNT), ["local"])
        serving[0] = refusing_password
        before.cut()
        with pytest.raises((StoreUnavailable, BadSetting)):
            until_it_fails(session)
        end = time.monotonic() + 10
        while len(refused) < 4 and time.monotonic() < end:
            time.sleep(0.1)
        assert refused
        time.sleep(2)
        serving[0] = after.serve
        until_it_works(session)


def fill(session: CassandraSession, statement: object) -> None:
    for _ in range(24):
        session.submit(statement, ["x" * 2**20])
    time.sleep(0.5)


def test_requests_wait_behind_a_full_socket_but_not_for_a_node_that_takes_nothing(fresh_module):
    settings = fresh_module.settings.cassandra
    wire = Wire(settings.port)
    with (
        listening(wire.serve) as port,
        CassandraSession(
            settings.model_copy(update={"port": port, "timeout": timedelta(seconds=20)})
        ) as session,
    ):
        statement = session.prepare(COUNT)
        wire.deafen()
        fill(session, statement)
        waiting = session.submit(statement, ["local"])
        wire.hear()
        assert len(list(waiting.result())) == 1
        time.sleep(4)
        assert len(session.execute(statement, ["local"])) == 1, "it was full for a moment"
        wire.deafen()
        fill(session, statement)
        (in_use,) = {
            one
            for holder in session.cluster.get_connection_holders()
            for one in holder.get_connections()
            if not one.is_control_connection
        }
        end = time.monotonic() + 20
        while in_use._socket_writable and time.monotonic() < end:
            time.sleep(0.1)
        begun, under_way = time.monotonic(), in_use.in_flight
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port} .*ConnectionBusy"):
                session.execute(statement, ["local"])
        assert time.monotonic() - begun < 10, "its 20 seconds are not waited for"
        assert in_use.in_flight == under_way


def test_what_is_answered_late_is_ended_in_time_and_not_taken_for_another_answer(fresh_module):
    settings = fresh_module.settings.cassandra
    wire = Wire(settings.port)

    async def ask() -> None:
        bridge = Bridge(session)
        numbers = session.prepare("SELECT writetime(release_version) FROM system.local")
        versions = session.prepare(COUNT)
        (number,) = await bridge.rows(session.submit(numbers))
        (version,) = await bridge.rows(session.submit(versions, ["local"]))
        wire.deafen()
        await asyncio.wait([bridge.rows(session.submit(numbers))])  # was being read from before
        begun = time.monotonic()
        asked = [bridge.rows(session.submit(versions, ["local"])) for _ in range(9)]
        for one in asked:
            with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port} .*OperationTimedOut"):
                await one
        assert 2 <= time.monotonic() - begun < 2 * 1.25 + 2
        wire.hear()
        answers = [bridge.rows(session.submit(numbers)) for _ in range(20)]
        assert await asyncio.gather(*answers) == [[number]] * 20
        assert number != version

    with (
        listening(wire.serve) as port,
        CassandraSession(
            settings.model_copy(update={"port": port, "timeout": timedelta(seconds=2)})
        ) as session,
    ):
        asyncio.run(ask())
        (in_use,) = {
            one
            for holder in session.cluster.get_connection_holders()
            for one in holder.get_connections()
            if not one.is_control_connection
        }
        end = time.monotonic() + 20
        while in_use.in_flight and time.monotonic() < end:
            time.sleep(0.05)
        assert in_use.in_flight == 0, "late answers give their ids back"


@pytest.mark.parametrize("half", ["0", "a" * 40, 2**31, [], object()])
def test_a_value_that_is_of_another_type_is_named_with_its_column(session, numbers, half):
    with pytest.raises(TypeError, match="half"):
        session.submit(numbers, [half])


def test_a_value_is_bound_as_the_driver_binds_it(session, numbers):
    session.execute(
        f"CREATE TABLE {session.settings.keyspace}.every (id uuid PRIMARY KEY, t timestamp,"
        " n bigint, b blob, m map<text, blob>, l list<text>, f boolean, s text, i int)"
    )
    insert = session.prepare(
        f"INSERT INTO {session.settings.keyspace}.every (id, t, n, b, m, l, f, s, i)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    time_ = datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    full = [uuid4(), time_, -(2**63), b"\x00", {"é": b""}, ["", "ü"], False, "", -1]
    for values in (full, [uuid4(), *[None] * 8], [uuid4(), *[UNSET_VALUE] * 8], [uuid4()]):
        assert session.submit(insert, values).query.values == insert.bind(values).values


def test_nothing_of_the_driver_is_written_to_stderr(fresh_module, capfd):
    settings = fresh_module.settings.cassandra
    wire = Wire(settings.port)
    with (
        listening(wire.serve) as port,
        CassandraSession(settings.model_copy(update={"port": port})) as session,
    ):
        wire.cut()
        with pytest.raises(StoreUnavailable):
            until_it_fails(session)
    assert capfd.readouterr().err == ""
