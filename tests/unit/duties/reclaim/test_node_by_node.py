"""Apply over nodes that are doubles: one after the other, and when it stops."""

import shlex
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from mailslice.duties.reclaim import duty, node_work
from mailslice.duties.reclaim.duty import Reclaim
from mailslice.duties.reclaim.params import Params
from mailslice.duties.reclaim.survey import NodesPlan
from mailslice.maintenance.progress import Progress
from mailslice.maintenance.result import Result
from mailslice.maintenance.run import Run
from mailslice.maintenance.run_request import NO_QUEUE
from mailslice.maintenance.runner import step_of
from mailslice.model.errors import PlanRefused, StoreUnavailable
from mailslice.model.settings import Settings
from mailslice.stores.cassandra.nodes import Compacting, Node
from mailslice.stores.cassandra.repairs import TableRepair
from tests.killed import Killed
from tests.unit.duties.judging import Locks, broken, run_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SCRIPT = """
import pathlib, sys
log, host, *words = sys.argv[1:]
with open(log, "a") as file: file.write(f"{host} {words[0]}\\n")
sys.exit("no room" if pathlib.Path(log + "." + host).exists() else 0)
"""


class Cluster:
    """What `Nodes` gives; each question is answered by what the test has put here."""

    def __init__(self):
        self.names = ["n1", "n2", "n3"]
        self.down = set()
        self.pending = {}
        self.collecting = []
        self.mute = set()
        self.sizes = {}
        self.repairs = ()

    def all(self):
        return tuple(
            Node(name, "dc", up=name not in self.down, asked=name not in self.down)
            for name in self.names
        )

    def disk_mib(self, address, _keyspace, tables):
        if address in self.mute:
            raise StoreUnavailable(f"Cassandra at {address} does not answer")
        left = self.sizes.setdefault(address, [9, 8])
        return dict.fromkeys(tables, left.pop(0) if len(left) > 1 else left[0])

    def compacting(self, address):
        collecting = bool(self.collecting) and self.collecting.pop(0) == address
        return Compacting(self.pending.get(address, 0), collecting)

    def compacted(self, _address, _keyspace, _since):
        return frozenset({"a", "b"})


@pytest.fixture
def cluster(monkeypatch):
    found = Cluster()
    monkeypatch.setattr(node_work, "Nodes", lambda _session: found)
    monkeypatch.setattr(node_work, "table_repairs", lambda *_: found.repairs)
    return found


def plan_of(nodes, tables=("a", "b")):
    return NodesPlan(run="r-1", made_at=NOW, keyspace="james", tables=tables, nodes=tuple(nodes))


@pytest.fixture
def work(cluster, tmp_path, monkeypatch):
    """A function that applies a plan of all nodes; `work.log` says what was run where."""
    log = tmp_path / "log"
    log.write_text("")
    command = shlex.join([sys.executable, "-c", SCRIPT, str(log), "{host}"])

    def run(template=command, limit=None, plan=None, checked=True, now=NOW, **params):
        plan = plan or plan_of(cluster.names)
        settings = Settings().model_copy(update={"duty": SimpleNamespace(nodetool=template)})
        stores = SimpleNamespace(
            cassandra=SimpleNamespace(require_clock=lambda *_: None),
            records=SimpleNamespace(locks=Locks()),
        )
        context = run_of(
            tmp_path,
            "reclaim",
            Params.parse(params),
            queue=NO_QUEUE,
            settings=settings,
            stores=stores,
            clock=lambda: now,
        )
        monkeypatch.setattr(
            Run, "out_of_time", lambda _: limit is not None and len(run.lines()) >= limit
        )
        run.folder = context.folder
        run.folder.write_json("plan.json", {"decided": plan.as_json(), "planDigest": plan.digest})
        run.folder.write_json("check.json", {"success": checked, "planDigest": plan.digest})
        return step_of(Reclaim(run.slept.append), "apply")(context)

    run.slept = []
    run.lines = lambda: log.read_text().splitlines()
    run.fail = lambda host: log.with_name(f"log.{host}").touch()
    return run


def statuses(summary):
    return [(each["node"], each["status"]) for each in summary["nodes"]]


def test_each_node_is_flushed_and_then_collected_before_the_next_is_begun(work):
    summary = work()
    assert work.lines() == [
        "n1 flush",
        "n1 garbagecollect",
        "n2 flush",
        "n2 garbagecollect",
        "n3 flush",
        "n3 garbagecollect",
    ]
    assert (summary["planned"], summary["applied"], summary["failed"], summary["left"]) == (
        3,
        3,
        0,
        0,
    )
    assert [each["reclaimedAt"] for each in summary["nodes"]] == ["2026-11-21T12:00:00Z"] * 3


def test_sizes_are_taken_between_flush_and_collection_and_after(work):
    first = work()["nodes"][0]
    assert (first["before"], first["after"]) == ({"a": 9, "b": 9}, {"a": 8, "b": 8})


@pytest.mark.parametrize(
    "readings",
    [[9, 15, 15, 15, 15, 2], [9, 9, 9, 7, 7, 2], [9, 2]],
    ids=["old and new together", "one file after the other", "at once"],
)
def test_what_lies_there_after_a_collection_is_told_when_the_replaced_files_are_gone(
    work, cluster, readings
):
    cluster.sizes["n1"] = readings
    first = work()["nodes"][0]
    assert (first["before"]["a"], first["after"]["a"]) == (9, 2)


def test_a_table_that_grows_meanwhile_is_not_waited_for_for_ever(work, cluster):
    cluster.sizes["n1"] = [9, 10]
    summary = work()
    assert summary["nodes"][0]["after"] == {"a": 10, "b": 10}
    assert summary["applied"] == 3
    assert len(work.slept) < 100


def test_a_node_that_fails_is_told_and_the_next_has_its_turn(work):
    work.fail("n2")
    summary = work()
    assert statuses(summary) == [("n1", "reclaimed"), ("n2", "failed"), ("n3", "reclaimed")]
    assert summary["nodes"][1]["problem"] == "flush ended with 1: no room"
    assert (summary["applied"], summary["failed"]) == (2, 1)
    assert "n2 garbagecollect" not in work.lines()


def test_pending_compactions_stop_the_run_before_that_node(work, cluster):
    cluster.pending["n2"] = 21
    summary = work()
    assert statuses(summary) == [("n1", "reclaimed"), ("n2", "left"), ("n3", "left")]
    assert (summary["left"], summary["failed"]) == (2, 0)
    assert summary["stopped"] == "n2 has 21 pending compactions, allowed are 20 (max_pending)"
    assert (summary["remaining"], summary["skipped"]) == (2, 0)
    assert work.lines() == ["n1 flush", "n1 garbagecollect"]


def test_as_many_as_are_allowed_do_not(work, cluster):
    cluster.pending["n2"] = 5
    assert work(max_pending=5)["applied"] == 3


@pytest.mark.parametrize("began", [None, NOW - timedelta(days=10), NOW - timedelta(days=9.9)])
def test_tables_whose_last_repair_is_gc_grace_before_the_end_of_a_collection_stop_the_run(
    work, cluster, began
):
    cluster.repairs = (TableRepair("a", timedelta(days=10), began),)
    summary = work(node_timeout="4h")
    assert work.lines() == []
    assert summary["left"] == 3
    assert "not repaired within gc_grace: a: last repair" in summary["stopped"]


def test_a_recent_repair_or_a_reason_lets_it_go_on(work, cluster):
    cluster.repairs = (TableRepair("a", timedelta(days=10), NOW - timedelta(days=9.8)),)
    assert work()["applied"] == 3
    cluster.repairs = (TableRepair("a", timedelta(days=10), None),)
    assert work(unrepaired=True, reason="repaired by hand, history is off")["applied"] == 3


def test_a_node_that_goes_down_stops_the_run(work, cluster):
    cluster.down.add("n3")
    summary = work()
    assert work.lines() == []
    assert "n3 is down" in summary["stopped"]
    assert summary["left"] == 3


def test_a_node_that_left_the_cluster_stops_the_run(work):
    """`Nodes` knows nothing of it: asking it would end in no error of ours."""
    summary = work(plan=plan_of(["n1", "n9", "n2"]))
    assert work.lines() == ["n1 flush", "n1 garbagecollect"]
    assert "n9 is down" in summary["stopped"]
    assert summary["left"] == 2


def test_a_collection_that_somebody_else_started_is_waited_for(work, cluster):
    cluster.collecting = ["n1", "n1"]
    assert work()["applied"] == 3
    assert work.slept.count(node_work.POLL_S) == 2


def test_one_that_does_not_end_stops_the_run(work, cluster, monkeypatch):
    monkeypatch.setattr(node_work, "PATIENCE", timedelta(0))
    cluster.collecting = ["n1"]
    summary = work()
    assert work.lines() == []
    assert summary["stopped"] == "a garbagecollect is at work on n1: never two nodes at once"


def test_a_command_that_was_given_up_may_still_be_at_work_there_so_no_other_node_is_begun(work):
    sleeper = shlex.join([sys.executable, "-c", "import time; time.sleep(60)", "{host}"])
    summary = work(template=sleeper, node_timeout="200ms")
    assert statuses(summary) == [("n1", "left"), ("n2", "left"), ("n3", "left")]
    assert "flush did not end within" in summary["stopped"]


@pytest.mark.parametrize(
    ("down", "not_true"), [(set(), set()), ({"n2", "n3"}, {"rows"}), ({"n1", "n2", "n3"}, {"rows"})]
)
def test_a_reclaimed_node_that_is_away_at_verify_fails_it(
    cluster, tmp_path, monkeypatch, down, not_true
):
    monkeypatch.setattr(duty, "Nodes", lambda _session: cluster)
    cluster.down = down
    node = {"status": "reclaimed", "before": {"a": 9}, "reclaimedAt": NOW.isoformat()}
    nodes = [{"node": name, **node} for name in cluster.names]
    stores = SimpleNamespace(cassandra=None)
    run = run_of(tmp_path, "reclaim", queue=NO_QUEUE, stores=stores)
    result = Result(applied=3, fields={"nodes": nodes})
    frames = Reclaim().verify(run, plan_of(cluster.names), result)
    assert broken(*frames) == not_true


def test_cassandra_that_goes_away_in_between_ends_the_run(work, cluster):
    cluster.mute.add("n2")
    summary = work()
    assert statuses(summary) == [("n1", "reclaimed"), ("n2", "left"), ("n3", "left")]
    assert "does not answer" in summary["stopped"]


def test_time_that_is_over_leaves_the_rest_to_the_next_run(work):
    summary = work(limit=2)
    assert statuses(summary) == [("n1", "reclaimed"), ("n2", "left"), ("n3", "left")]
    assert (summary["stopped"], summary["remaining"]) == ("the time limit is over", 2)


def test_a_try_of_the_same_run_begins_where_the_killed_one_was(work):
    work(limit=2)
    kept = work.folder.read_json("progress.json")
    summary = work()
    assert work.lines() == [
        "n1 flush",
        "n1 garbagecollect",
        "n2 flush",
        "n2 garbagecollect",
        "n3 flush",
        "n3 garbagecollect",
    ]
    assert summary["nodes"][0] == kept["nodes"][0]
    assert summary["applied"] == 3


def test_a_second_try_that_is_killed_at_its_first_word_forgets_no_node_of_the_first(
    work, monkeypatch
):
    work()
    save = Progress.save

    def save_and_die(progress):
        save(progress)
        raise Killed

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(Progress, "save", save_and_die)
        patch.setattr(Progress, "__exit__", lambda *_: None)
        work()
    assert [node["node"] for node in work.folder.read_json("progress.json")["nodes"]] == [
        "n1",
        "n2",
        "n3",
    ]


def test_progress_of_another_plan_is_nothing_to_go_by(work):
    work()
    work(plan=plan_of(("n1", "n2", "n3"), tables=("a",)))
    assert len(work.lines()) == 12


def test_a_plan_without_nodes_runs_nothing_and_needs_no_command(work):
    summary = work(template="", plan=plan_of(()))
    assert (summary["planned"], summary["applied"], work.lines()) == (0, 0, [])


def test_a_setting_that_is_gone_is_refused(work):
    with pytest.raises(PlanRefused, match="MAILSLICE_NODETOOL, which is not set any more"):
        work(template="")


def test_what_the_gate_did_not_pass_is_refused(work):
    with pytest.raises(PlanRefused, match="check comes first"):
        work(checked=False)


def test_an_old_plan_is_refused(work):
    with pytest.raises(PlanRefused, match=r"25\.0 h old"):
        work(now=NOW + timedelta(hours=25))
