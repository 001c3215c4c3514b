"""Files of one node, and the way to its nodetool."""

import shlex
from pathlib import Path

import pytest

from mailslice.model.settings import read_env_file
from stack import cassandra
from stack.cassandra import Node, cassandra_node, nodetool_setting
from stack.settings import Profile, StackSettings, stack_settings
from tests.own_cluster import Cluster


@pytest.fixture
def stack(tmp_path, monkeypatch) -> StackSettings:
    monkeypatch.setattr(cassandra, "part", lambda *_: Path("/jars with space"))
    monkeypatch.setattr(cassandra, "java", lambda: Path("/java/bin/java"))
    monkeypatch.setattr(cassandra, "java_home", lambda: Path("/java"))
    environ = {
        "MAILSLICE_STACK_STATE": str(tmp_path / "a clone's $state"),
        "MAILSLICE_STACK_CASSANDRA_HEAP": "450m",
    }
    return stack_settings(Profile.RUN, environ)


def test_the_setting_is_one_word_however_the_clone_is_called(stack, tmp_path):
    file = tmp_path / "settings.env"
    file.write_text("".join(f"{name}={value}\n" for name, value in nodetool_setting(stack).items()))
    [script] = shlex.split(read_env_file(file)["MAILSLICE_NODETOOL"])
    assert script == str(stack.state / "nodetool")
    text = Path(script).read_text()
    assert "'/jars with space/*'" in text
    assert text.endswith('-h 127.0.0.1 -p 17044 "$@"\n')
    assert Path(script).stat().st_mode & 0o100


def test_a_node_listens_on_its_own_address_and_asks_the_seed(stack):
    node = Node("127.0.0.2", "127.0.0.1", stack.state / "cassandra2", 17999, 5000)
    program = cassandra_node(stack, node)
    yaml = (node.folder / "cassandra.yaml").read_text()
    for line in (
        "listen_address: 127.0.0.2",
        "rpc_address: 127.0.0.2",
        '- seeds: "127.0.0.1:17043"',
        "memtable_heap_space: 90MiB",
    ):
        assert line in yaml
    arguments = (node.folder / "java.args").read_text()
    assert '"-Dcassandra.jmx.local.port=17999"' in arguments
    assert '"-Dcassandra.ring_delay_ms=5000"' in arguments
    assert program.name == "cassandra2"


def test_a_cluster_has_its_nodes_on_loopback_addresses_and_one_nodetool_for_all(stack):
    stack.state.mkdir(parents=True)
    cluster = Cluster(stack)
    assert [(node.address, node.jmx_port) for node in cluster.nodes] == [
        ("127.0.0.1", 17044),
        ("127.0.0.2", 17045),
        ("127.0.0.3", 17046),
    ]
    settings = cluster.settings()
    assert settings["MAILSLICE_CASSANDRA_CONTACT_POINTS"] == "127.0.0.1,127.0.0.2,127.0.0.3"
    assert shlex.split(settings["MAILSLICE_NODETOOL"]) == [str(stack.state / "nodetool"), "{host}"]
    assert (stack.state / "nodetool").read_text().count("NodeTool") == 3


def test_a_stack_that_keeps_its_data_keeps_its_number_of_tokens(stack):
    """Cassandra does not start on data of another number."""
    cassandra.cassandra(stack)
    assert "num_tokens: 16\n" in (stack.state / "cassandra/cassandra.yaml").read_text()
