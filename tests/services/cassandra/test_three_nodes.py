"""Three nodes of Cassandra, three copies.

With one away duties go on; with two away they stop and nothing is deleted.
"""

import random
import socket
import subprocess
import time
import uuid
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from cassandra import ConsistencyLevel

from mailslice.admin import queues
from mailslice.engine import worker_stores
from mailslice.maintenance.artifacts import RunFolder, artifacts
from mailslice.maintenance.run_request import NO_QUEUE, RunRequest
from mailslice.model.errors import GateFailed, StoreUnavailable
from mailslice.model.mail import BlobId, EnqueueId, Mail, Partition, QueuedMail, ViewRow
from mailslice.model.slices import slice_start
from mailslice.stores import open_stores
from mailslice.stores.cassandra.session import CassandraSession
from stack.settings import Profile, stack_settings
from tests.own_cluster import Cluster
from tests.services.duties.counter_repair.making import Mailboxes, create_mailbox_tables
from tests.services.duties.world import (
    environment,
    kill,
    let_run_out,
    run_all_in_process,
    run_step_in_process,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1500)]

WINDOW = timedelta(seconds=10)
ROWS, SLICES = 6000, 5
FIRST, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"


def free_ports(count):
    """A row of ports that nobody listens on."""
    for _ in range(50):
        base = random.randrange(20000, 31000)
        try:
            for number in range(count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", base + number))
        except OSError:
            continue
        return base
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    base = free_ports(6)
    environ = {
        "MAILSLICE_STACK_TEST_STATE": str(tmp_path_factory.mktemp("cluster")),
        "MAILSLICE_STACK_TEST_CASSANDRA_PORT": str(base),
        "MAILSLICE_STACK_TEST_CASSANDRA_STORAGE_PORT": str(base + 1),
        "MAILSLICE_STACK_TEST_CASSANDRA_JMX_PORT": str(base + 2),
        "MAILSLICE_STACK_CASSANDRA_HEAP": "450m",
        "MAILSLICE_STACK_START_TIMEOUT": "300",
    }
    with Cluster(stack_settings(Profile.TEST, environ)) as started:
        yield started


@pytest.fixture(autouse=True)
def _close_workers_stores():
    yield
    worker_stores.close_all()


@pytest.fixture(scope="module")
def world(cluster, fresh_module):
    """Settings of a deployment whose view is on the cluster, three copies of all."""
    more = {"MAILSLICE_QUEUE_SLICE_WINDOW": "10s", "MAILSLICE_QUEUE_SHARED": "false"}
    replication = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"
    settings = fresh_module.but(
        **cluster.settings(), **more, MAILSLICE_OWN_REPLICATION=replication
    ).settings
    with CassandraSession(settings.cassandra) as session:
        session.execute(
            f"CREATE KEYSPACE {settings.cassandra.keyspace} WITH replication = {replication}"
        )
    return settings


@pytest.fixture(scope="module")
def mailboxes(world):
    """James' mailbox tables are there."""
    with open_stores(world) as stores:
        create_mailbox_tables(stores)


@pytest.fixture
def timed(capsys):
    """`timed(what, function, ...)` gives what the function gives, and prints its duration."""

    def call(what, function, *args, **named):
        began = time.monotonic()
        try:
            return function(*args, **named)
        finally:
            with capsys.disabled():
                print(f"\n  {time.monotonic() - began:6.1f} s  {what}", end="", flush=True)

    return call


def fill(stores, count=ROWS):
    """A queue with dead rows in closed slices, and one live mail after them."""
    queue = queues.create(stores, f"q-{uuid.uuid4().hex[:8]}")
    base = slice_start(datetime.now(UTC), WINDOW) - 30 * WINDOW
    stores.tables.browse_starts.insert_first(queue, base)
    stores.tables.content_starts.insert_first(queue, base)
    rows = [row(queue, base + number % SLICES * WINDOW, number) for number in range(count)]
    stores.tables.v4.insert_many([*rows, row(queue, base + 8 * WINDOW, 0)])
    stores.tables.deleted.mark_many(queue, [each.enqueue_id for each in rows])
    return queue


def row(queue, start, number):
    name = random.Random(number).randbytes(600).hex()
    return ViewRow(
        queue,
        Partition(start, 0),
        start,
        QueuedMail(
            EnqueueId(uuid.uuid4()), Mail(name, None, ("c@d.example",)), BlobId("h"), BlobId("b")
        ),
    )


def request(queue, **params):
    return RunRequest(
        "queue_cleanup", queue, f"r-{uuid.uuid4().hex[:8]}", params={"grace": "1s", **params}
    )


def convicted(cluster, address, state="DN", by=FIRST):
    """The node `by` has noticed that this one is dead.

    Until then its reads wait for the dead one's answer, and time out.
    """
    deadline = time.monotonic() + 180
    while (
        f"{state}  {address}"
        not in subprocess.run(
            [cluster.nodetool(), by, "status"], capture_output=True, text=True, check=True
        ).stdout
    ):
        assert time.monotonic() < deadline
        time.sleep(1)


def back(cluster, settings, address, nodes):
    """The node is up again and knows the tables made meanwhile: it answers before that."""
    cluster.start(address)
    deadline = time.monotonic() + 180
    versions: list[str] = []
    while len(versions) < nodes or len(set(versions)) > 1:
        assert time.monotonic() < deadline, versions
        time.sleep(1)
        with (
            suppress(StoreUnavailable),
            CassandraSession(settings.cassandra) as session,
        ):  # one that is not quite back may not answer
            versions = [
                session.ask(host, "SELECT schema_version FROM system.local")[0][0]
                for host in session.connected()
            ]


@contextmanager
def session_at(settings, address, level):
    """A session of its own with one coordinator and one consistency level."""
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import WhiteListRoundRobinPolicy

    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([address]),
        consistency_level=level,
        request_timeout=30,
    )
    with Cluster(
        [address], port=settings.cassandra.port, execution_profiles={EXEC_PROFILE_DEFAULT: profile}
    ) as one:
        yield one.connect(settings.cassandra.keyspace)


def rows_at_one(settings, queue):
    """Rows of the only node left."""
    with session_at(settings, FIRST, ConsistencyLevel.ONE) as session:
        found = session.execute("SELECT queuename FROM enqueuedmailsv4")
        return sum(each[0] == queue for each in found)


def live_at_all(settings, queue):
    """As `live`, by all three: which two a quorum asks is the coordinator's choice."""
    with session_at(settings, FIRST, ConsistencyLevel.ALL) as session:
        rows, marks = (
            {EnqueueId(id_) for name, id_ in session.execute(select) if name == queue}
            for select in (
                "SELECT queuename, enqueueid FROM enqueuedmailsv4",
                "SELECT queuename, enqueueid FROM deletedmailsv2",
            )
        )
    return rows - marks


def test_one_node_away_and_the_cleanup_goes_on_two_away_and_it_stops_and_deletes_nothing(
    cluster, world, timed
):
    with open_stores(world) as stores:
        queue = fill(stores)
        for (
            node
        ) in cluster.nodes:  # what is deleted while it is still in memory never comes to the disk
            subprocess.run(
                [cluster.nodetool(), node.address, "flush", world.cassandra.keyspace],
                check=True,
                capture_output=True,
            )
        cluster.kill(THIRD)
        planned = timed(
            "cleanup, dry run, a node has just died",
            run_all_in_process,
            request(queue, dry_run=True),
            world,
        )
        assert (planned["status"], planned["planned"]) == ("dry run", ROWS)

        halfway = request(queue)
        for step in ("plan", "check"):
            timed(f"cleanup, {step}, one node away", run_step_in_process, step, halfway, world)
        cluster.kill(SECOND)
        timed("the second node is convicted", convicted, cluster, SECOND)
        worker_stores.close_all()  # what a new process knows of the cluster it learns now
        for asked, step in ((request(queue), "plan"), (halfway, "apply")):
            with pytest.raises(StoreUnavailable):
                timed(f"cleanup, {step}, two nodes away", run_step_in_process, step, asked, world)
        assert rows_at_one(world, queue) == ROWS + 1

        timed("the second node is back", back, cluster, world, SECOND, 2)
        worker_stores.close_all()
        report = timed("cleanup, one node away", run_all_in_process, request(queue), world)
        assert (report["status"], report["applied"], report["failed"]) == ("done", ROWS, 0)
        assert report["after"] | {"browseStart": None, "contentStart": None} == {
            "browseStart": None,
            "contentStart": None,
            "live": 1,
            "dead": 0,
        }


def test_disk_comes_back_on_one_node_after_the_other_and_not_while_one_is_away(cluster, world):
    """Runs second: the third node is still away, and has missed all deletes."""
    said = "what the third node missed is told of in the next test"
    asked = {"params": {"force": True, "unrepaired": True, "reason": said}}
    with pytest.raises(GateFailed, match="Every node is up"):
        run_all_in_process(RunRequest("reclaim", NO_QUEUE, "away", **asked), world)
    back(cluster, world, THIRD, 3)
    report = run_all_in_process(RunRequest("reclaim", NO_QUEUE, "whole", **asked), world)
    assert (report["status"], report["planned"], report["applied"], report["failed"]) == (
        "done",
        3,
        3,
        0,
    )
    assert [each["node"] for each in report["nodes"]] == [FIRST, SECOND, THIRD]
    ends = [(each["reclaimedAt"], each["seconds"]) for each in report["nodes"]]
    began = [datetime.fromisoformat(at) for at, _ in ends]
    for (at, (_, seconds)), after in zip(zip(began, ends, strict=True), began[1:], strict=False):
        assert at + timedelta(seconds=seconds) <= after + timedelta(milliseconds=5)
    assert all(
        each["after"]["enqueuedmailsv4"] <= each["before"]["enqueuedmailsv4"]
        for each in report["nodes"]
    )
    first = report["nodes"][0]
    assert first["after"]["enqueuedmailsv4"] < first["before"]["enqueuedmailsv4"]


def test_a_reclaim_that_is_killed_between_two_nodes_goes_on_with_the_next(cluster, world):
    said = {"force": True, "unrepaired": True, "reason": "what was missed is told of below"}
    asked = RunRequest("reclaim", NO_QUEUE, "killed", params=said)
    for step in ("plan", "check"):
        run_step_in_process(step, asked, world)
    kill("apply", asked, {**environment(world), **cluster.settings()}, "apply:after-node")
    folder = RunFolder(artifacts(world), asked.duty, asked.queue, asked.run)
    (first,) = folder.read_json("progress.json")["nodes"]
    with open_stores(world) as stores:
        let_run_out(stores, "reclaim")
    for step in ("apply", "verify"):
        run_step_in_process(step, asked, world)
    report = run_step_in_process("report", asked, world)
    assert (report["status"], report["applied"], report["failed"]) == ("done", 3, 0)
    assert [each["node"] for each in report["nodes"]] == [FIRST, SECOND, THIRD]
    assert first.items() <= report["nodes"][0].items()


def live(stores, queue):
    """Enqueue ids with a row and without a mark, as a quorum has it."""
    rows = [
        each
        for world in stores.tables.v4.partitions(queue)
        for each in stores.tables.v4.ids(queue, world)
    ]
    ids = [each.enqueue_id for each in rows]
    marked = set(stores.tables.deleted.marked(queue, ids))
    return {each for each in ids if each not in marked}


def keep_tombstones(stores, seconds):
    for table in ("enqueuedmailsv4", "deletedmailsv2"):
        name = f"{stores.settings.cassandra.keyspace}.{table}"
        stores.cassandra.execute(f"ALTER TABLE {name} WITH gc_grace_seconds = {seconds}")


def cleaned_while_a_node_was_away(cluster, world, timed):
    """Slices behind a stuck mail are emptied: (queue, ids of the done mails, the stuck one's)."""
    keyspace = world.cassandra.keyspace
    with open_stores(world) as stores:
        queue = queues.create(stores, f"q-{uuid.uuid4().hex[:8]}")
        base = slice_start(datetime.now(UTC), WINDOW) - 30 * WINDOW
        stores.tables.browse_starts.insert_first(queue, base)
        stores.tables.content_starts.insert_first(queue, base)
        stuck = row(queue, base, 0)
        done = [row(queue, base + (1 + number % 3) * WINDOW, number) for number in range(60)]
        stores.tables.v4.insert_many([stuck, *done])
        for node in cluster.nodes:
            nodetool(cluster, node.address, "flush", keyspace)
        hints(cluster, "disablehandoff")
        cluster.kill(THIRD)
        timed("the third node is convicted", convicted, cluster, THIRD)
        stores.tables.deleted.mark_many(queue, [each.enqueue_id for each in done])
        worker_stores.close_all()
        report = timed("cleanup, one node away", run_all_in_process, request(queue), world)
        assert (report["applied"], report["marks"]["dropped"]) == (60, 60)
        assert [each.partition(":")[0] for each in report["unrepaired"]] == [
            "enqueuedmailsv4",
            "deletedmailsv2",
        ]
        assert "can bring rows back as live mail" in report["message"]
        timed("the third node is back", back, cluster, world, THIRD, 3)
        hints(cluster, "enablehandoff")
        worker_stores.close_all()
    return queue, {each.enqueue_id for each in done}, stuck.enqueue_id


def hints(cluster, command):
    """Cassandra keeps them for three hours of an outage: this one is longer."""
    for address in (FIRST, SECOND):
        nodetool(cluster, address, command)


@pytest.fixture
def reclaim(world, timed):
    """A function that reclaims all nodes, whatever waits there; the report."""

    def run(**params):
        said = {"force": True, "node_timeout": "1m", **params}
        asked = RunRequest("reclaim", NO_QUEUE, f"r-{uuid.uuid4().hex[:8]}", params=said)
        return timed(f"reclaim {params}", run_all_in_process, asked, world)

    return run


def test_without_a_repair_the_mails_whose_end_a_node_missed_come_back_as_live(
    cluster, world, timed, reclaim
):
    """What the refusal of a reclaim is for: here a person overrules it, and nobody has repaired."""
    queue, done, stuck = cleaned_while_a_node_was_away(cluster, world, timed)
    with open_stores(world) as stores:
        keep_tombstones(stores, 1)
        time.sleep(2)
        assert reclaim(unrepaired=True, reason="a mistake")["applied"] == 3
        keep_tombstones(stores, 864_000)
        assert live_at_all(world, queue) == {*done, stuck}
        assert live(stores, queue) == {*done, stuck}  # that read has repaired the others


def test_a_node_that_missed_the_end_of_mails_gives_none_of_them_back_as_live(
    cluster, world, timed, reclaim
):
    queue, _, stuck = cleaned_while_a_node_was_away(cluster, world, timed)
    keyspace = world.cassandra.keyspace
    # Cassandra compacts when it likes: gc_grace stays long until the repair is through.
    for address in (FIRST, SECOND):
        nodetool(cluster, address, "flush", keyspace)
        nodetool(cluster, address, "compact", keyspace)
    with open_stores(world) as stores:
        with pytest.raises(GateFailed, match="repaired within gc_grace"):
            reclaim()
        for keywords in (("-pr",), ("--full",)):
            nodetool(cluster, FIRST, "repair", *keywords, keyspace, "enqueuedmailsv4")
        with pytest.raises(GateFailed, match="repaired within gc_grace"):
            reclaim()
        nodetool(cluster, FIRST, "repair", "--full", keyspace, "enqueuedmailsv4", "deletedmailsv2")
        assert reclaim()["applied"] == 3
        assert live(stores, queue) == {stuck}
        keep_tombstones(stores, 1)
        time.sleep(2)
        purged = reclaim(unrepaired=True, reason="the whole repair of a minute ago")
        assert purged["applied"] == 3
        assert live(stores, queue) == {stuck}
        keep_tombstones(stores, 864_000)


def nodetool(cluster, address, *words):
    subprocess.run([cluster.nodetool(), address, *words], check=True, capture_output=True)


def add_where_nobody_else_has_it(cluster, settings, statement, *values):
    """What James' increment is when its leader dies before the other replicas have it.

    The third node is the leader, for it is the only one that is up.
    """
    others, keyspace = (FIRST, SECOND), settings.cassandra.keyspace
    nodetool(cluster, THIRD, "disablehandoff")
    for address in others:
        nodetool(cluster, address, "flush", keyspace)  # a kill costs what is only in memory
        cluster.kill(address)
    for address in others:
        convicted(cluster, address, by=THIRD)
    with session_at(settings, THIRD, ConsistencyLevel.ONE) as session:
        session.execute(statement, values)
    nodetool(cluster, THIRD, "flush", keyspace)
    cluster.kill(THIRD)
    for address in others:
        cluster.start(address)


def test_what_james_added_on_a_node_that_is_away_is_not_added_twice(
    cluster, world, mailboxes, timed
):
    """All three are up before and after."""
    with open_stores(world) as stores:
        james = Mailboxes(world, stores)
        mailbox = james.mailbox(messages=5, seen=2, add=(-1, -1))
        assert james.counters(mailbox) == (4, 2)
        update = (
            "UPDATE mailboxcounters SET count = count + 1, unseen = unseen + 1 WHERE mailboxid = %s"
        )
        add_where_nobody_else_has_it(cluster, world, update, mailbox)
        timed("the third node is convicted", convicted, cluster, THIRD)
        worker_stores.close_all()
    with open_stores(world) as stores:
        james = Mailboxes(world, stores)
        report = timed("counter_repair, the node that knows is away", james.run)
        assert (report["wrong"], report["applied"]) == (1, 0)
        assert report["skippedBy"] == {"a replica is away": 1}
        timed("the third node is back", back, cluster, world, THIRD, 3)
        worker_stores.close_all()
    with open_stores(world) as stores:
        james = Mailboxes(world, stores)
        assert stores.mailboxes.counters_of_all_replicas(mailbox).count == 5
        assert james.run()["applied"] == 0
        assert stores.mailboxes.counters_of_all_replicas(mailbox).count == 5
        james.execute("DELETE FROM {ks}.mailbox WHERE id = %s", mailbox)


def test_a_node_that_hangs_stops_nobody(cluster, world, timed):
    """Its connections stay open, so what is asked of it is not refused but never answered."""
    with open_stores(world) as stores:
        queue = fill(stores, 500)
    cluster.freeze(SECOND)
    try:
        report = timed("cleanup, a node hangs", run_all_in_process, request(queue), world)
    finally:
        cluster.thaw(SECOND)
        timed("it is up again", convicted, cluster, SECOND, "UN")
    assert (report["status"], report["applied"], report["failed"]) == ("done", 500, 0)
    assert report["after"] | {"browseStart": None, "contentStart": None} == {
        "browseStart": None,
        "contentStart": None,
        "live": 1,
        "dead": 0,
    }


def test_blobs_and_counters_with_one_node_away_and_with_two_and_when_they_are_back(
    cluster, world, mailboxes, timed
):
    """Runs last: all three are up again. No hints: what a node missed comes from reads alone."""
    absent = ("enqueuedMailsV3", "attachmentV2", "mailRepositoryContentV2")
    settings = world.model_copy(
        update={"gc": world.gc.model_copy(update={"absent_sources": absent})}
    )
    with open_stores(settings) as stores:
        stores.tables.create()
        stores.cassandra.execute(
            f"CREATE TABLE {world.cassandra.keyspace}.messagev3 "
            "(messageid timeuuid PRIMARY KEY, headercontent text, bodycontent text)"
        )
        stores.blobs.ensure_bucket()
        orphans, referred = ({BlobId(str(uuid.uuid4())) for _ in range(count)} for count in (20, 5))
        for key in orphans | referred:
            stores.blobs.put(key, b"content")

        def refer(key):
            statement = (
                f"INSERT INTO {world.cassandra.keyspace}.messagev3 "
                "(messageid, headercontent, bodycontent) VALUES (%s, %s, %s)"
            )
            stores.cassandra.execute(statement, (uuid.uuid1(), key, key))

        for key in referred:
            refer(key)
        james = Mailboxes(settings, stores)
        first, second = (james.mailbox(messages=5, seen=2, add=(2, 1)) for _ in range(2))
        time.sleep(3)  # past the grace
        collect = {"grace": "1s", "delete_after": "1ms", "max_share": 1}

        def asked(**more):
            return RunRequest(
                "blob_gc", NO_QUEUE, f"r-{uuid.uuid4().hex[:8]}", params={**collect, **more}
            )

        def keys():
            return {blob.key for blob in stores.blobs.list()}

        assert (
            timed("blob_gc, all nodes up", run_all_in_process, asked(), settings)["candidates"]
            == 20
        )
        cluster.kill(THIRD)
        worker_stores.close_all()
        assert (
            timed(
                "blob_gc, dry run, a node has just died",
                run_all_in_process,
                asked(dry_run=True),
                settings,
            )["planned"]
            == 20
        )
        timed(
            "the third node is convicted", convicted, cluster, THIRD
        )  # an update that waits for it runs out of time, is unknown, and never tried again
        report = timed("counter_repair, one node away", james.run, mailboxes=[str(first)])
        assert report["skippedBy"] == {"a replica is away": 1}

        halfway, drifted = asked(), james.request(mailboxes=[str(second)])
        for step in ("plan", "check"):
            run_step_in_process(step, halfway, settings)
            run_step_in_process(step, drifted, settings)
        cluster.kill(SECOND)
        timed("the second node is convicted", convicted, cluster, SECOND)
        worker_stores.close_all()
        for request_, step in (
            (asked(), "plan"),
            (halfway, "apply"),
            (james.request(), "plan"),
            (drifted, "apply"),
        ):
            with pytest.raises(StoreUnavailable):
                timed(
                    f"{request_.duty}, {step}, two nodes away",
                    run_step_in_process,
                    step,
                    request_,
                    settings,
                )
        assert keys() == orphans | referred

        timed("the second node is back", back, cluster, world, SECOND, 2)
        worker_stores.close_all()
        for request_, done in ((halfway, 20), (drifted, 0)):
            for step in ("apply", "verify"):
                timed(
                    f"{request_.duty}, {step}, resumed, one node away",
                    run_step_in_process,
                    step,
                    request_,
                    settings,
                )
            report = run_step_in_process("report", request_, settings)
            assert (report["status"], report["failed"]) == ("done", 0)
            assert report["gcedBlobCount" if done == 20 else "applied"] == done
        assert keys() == referred
        assert [james.counters(mailbox) for mailbox in (first, second)] == [(7, 4)] * 2

        # what the third node misses
        more = {BlobId(str(uuid.uuid4())) for _ in range(4)}
        for number, key in enumerate(sorted(more)):
            stores.blobs.put(key, b"content")
            if number % 2:
                refer(key)
                referred.add(key)
        missed = james.mailbox(messages=4, seen=1, add=(1, 1))
        queue = fill(stores, 500)
        timed("the third node is back", back, cluster, world, THIRD, 3)
        worker_stores.close_all()
        with open_stores(settings) as whole:
            assert Mailboxes(settings, whole).run()["applied"] == 3
        # Now every quorum needs the node that missed all that; the settings' first address is dead.
        cluster.kill(FIRST)
        worker_stores.close_all()
        time.sleep(2)  # past the grace
    with open_stores(settings) as stores:
        james = Mailboxes(settings, stores)
        assert (
            timed("blob_gc, the first node has just died", run_all_in_process, asked(), settings)[
                "candidates"
            ]
            == 2
        )
        assert (
            timed("blob_gc, the first node away", run_all_in_process, asked(), settings)[
                "gcedBlobCount"
            ]
            == 2
        )
        assert {blob.key for blob in stores.blobs.list()} == referred
        report = timed("counter_repair, the first node away", james.run)
        assert (report["processedMailboxes"], report["wrong"]) == (3, 0)
        assert [james.counters(mailbox) for mailbox in (first, second, missed)] == [(5, 3)] * 2 + [
            (4, 3)
        ]
        report = timed("cleanup, the first node away", run_all_in_process, request(queue), settings)
        assert (report["status"], report["applied"], report["failed"]) == ("done", 500, 0)
        assert report["after"] | {"browseStart": None, "contentStart": None} == {
            "browseStart": None,
            "contentStart": None,
            "live": 1,
            "dead": 0,
        }
