"""Cassandra as one local process: its folder, its files, its command."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from stack.parts import java, java_home, part
from stack.program import FILES, Program, answers_cql, filled, write_file
from stack.settings import Profile, StackSettings

_SHORT_PAUSES = "-XX:+UseG1GC\n-XX:MaxGCPauseMillis=200"


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a cluster on this machine: its loopback address, that of the seed, its folder and
    its JMX port (always on 127.0.0.1).
    """

    address: str
    seed: str
    folder: Path
    jmx_port: int
    ring_delay_ms: int = 1
    """How long a joining node listens to the others first. A single node needs no time."""

    @property
    def alone(self) -> bool:
        """Whether it is the only node of its cluster."""
        return self.ring_delay_ms == 1


def only_node(stack: StackSettings) -> Node:
    """The node of a stack."""
    return Node("127.0.0.1", "127.0.0.1", stack.state / "cassandra", stack.ports.cassandra_jmx_port)


def cassandra(stack: StackSettings) -> Program:
    """Writes the folder of Cassandra and gives its program."""
    return cassandra_node(stack, only_node(stack))


def cassandra_node(stack: StackSettings, node: Node) -> Program:
    """Writes the folder of one node and gives its program; versions, sizes and the two other ports
    are the stack's.
    """
    folder = node.folder
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    write_file(
        "cassandra.yaml",
        folder / "cassandra.yaml",
        folder=folder,
        address=node.address,
        seed=node.seed,
        # A scan queries each range: most of the tests' CPU. Existing data needs the old number.
        tokens=4 if stack.profile is Profile.TEST else 16,
        memtables=min(256, _mib(stack.sizes.cassandra_heap) // 5),
        port=stack.ports.cassandra_port,
        storage_port=stack.ports.cassandra_storage_port,
    )
    write_file("logback.xml", folder / "logback.xml", level="INFO")
    arguments = folder / "java.args"
    arguments.write_text("\n".join(map(_quoted, _arguments(stack, node))), encoding="utf-8")
    return Program(
        name=folder.name,
        command=(str(java()), f"@{arguments}"),
        environment={"JAVA_HOME": str(java_home())},
        healthy=lambda: answers_cql(node.address, stack.ports.cassandra_port),
        ports=("cassandra_port", "cassandra_storage_port", "cassandra_jmx_port"),
        stop_seconds=40,
    )


def nodetool_command(stack: StackSettings, node: Node | None = None) -> tuple[str, ...]:
    """`nodetool` of this stack's Cassandra, or of another node, without its arguments; no script of
    Cassandra's distribution is needed.
    """
    node = node or only_node(stack)
    jars = f"{part('cassandra', stack.sizes)}/*"
    jvm = ("-Xmx128m", *_opened(), f"-Duser.home={node.folder}", "-cp", jars)
    tool = ("org.apache.cassandra.tools.NodeTool", "-h", "127.0.0.1", "-p", str(node.jmx_port))
    return (str(java()), *jvm, *tool)


def nodetool_setting(stack: StackSettings) -> dict[str, str]:
    """MAILSLICE_NODETOOL of this stack: a script of one line in its folder, which people may call,
    too.
    """
    script = stack.state / "nodetool"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        f'#!/bin/sh\nexec {shlex.join(nodetool_command(stack))} "$@"\n', encoding="utf-8"
    )
    script.chmod(0o755)
    return {"MAILSLICE_NODETOOL": as_word(script)}


def as_word(path: Path) -> str:
    """The path as one word of a command, escaped without quotes: the settings file drops quotes at
    the ends of a value.
    """
    return re.sub(r"([^\w/.,+-])", r"\\\1", str(path))


def _arguments(stack: StackSettings, node: Node) -> list[str]:
    options = filled(
        "cassandra.jvm",
        heap=stack.sizes.cassandra_heap,
        # With hundreds of tables G1 keeps marking: a sixth of its CPU. Tests mind no pause.
        collector="-XX:+UseParallelGC" if stack.profile is Profile.TEST else _SHORT_PAUSES,
        folder=node.folder,
        jmx_port=node.jmx_port,
        ring_delay_ms=node.ring_delay_ms,
    )
    # Flushes Cassandra's schema tables with the others, not at each CREATE: three times faster, and
    # the commit log keeps all. Not in a cluster: a restarted node must know them at once.
    unflushed = ["-Dcassandra.test.flush_local_schema_changes=false"] if node.alone else []
    # Flushes no system table at each TRUNCATE, with which tests empty tables: six times faster.
    if node.alone and stack.profile is Profile.TEST:
        unflushed.append("-Dcassandra.unsafesystem=true")
    jars = f"{part('cassandra', stack.sizes)}/*"
    # Cassandra 4 is made for Java 11: on 17 it can measure objects only by an agent.
    agents = sorted(part("cassandra", stack.sizes).glob("jamm-*.jar"))
    is_four = stack.sizes.cassandra_version.startswith("4.")
    measuring = [f"-javaagent:{jar}" for jar in agents if is_four]
    daemon = "org.apache.cassandra.service.CassandraDaemon"
    return [*options.splitlines(), *_opened(), *unflushed, *measuring, "-cp", jars, daemon]


def _mib(size: str) -> int:
    """A heap's size in MiB."""
    return int(size[:-1]) * (1024 if size.endswith("g") else 1)


def _opened() -> list[str]:
    """JVM options that open the JDK packages which Cassandra and its tools reach into."""
    return (FILES / "cassandra.opens").read_text(encoding="utf-8").split()


def _quoted(argument: str) -> str:
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
