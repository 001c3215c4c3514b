"""Several Cassandra nodes on one machine, each on its own loopback address, all on the same ports.
For tests in which a node goes away.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from stack.cassandra import Node, as_word, cassandra_node, nodetool_command
from stack.program import CannotStart
from stack.settings import StackSettings

_RING_DELAY_MS = 5000


class Cluster:
    """`count` nodes at 127.0.0.1, 127.0.0.2...; a context manager that leaves no process. Each node
    has the sizes of `stack`.

    JMX of node n listens at the stack's JMX port + n - 1. `guarded`: nodes require a password
    (initially cassandra / cassandra) and check permissions.
    """

    def __init__(self, stack: StackSettings, count: int = 3, *, guarded: bool = False) -> None:
        self._stack, folder = stack, stack.state
        self._guarded = guarded
        seed, jmx_port = "127.0.0.1", stack.ports.cassandra_jmx_port
        self.nodes = tuple(
            Node(f"127.0.0.{n}", seed, folder / f"cassandra{n}", jmx_port + n - 1, _RING_DELAY_MS)
            for n in range(1, count + 1)
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self.start(node.address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for address in list(self._processes):
            self.kill(address)

    def start(self, address: str) -> None:
        """Starts one node and waits until it answers.

        Raises CannotStart with its log. Nodes must start one at a time: nodes that join together
        take each other's tokens.
        """
        node = next(node for node in self.nodes if node.address == address)
        program = cassandra_node(self._stack, node)
        if self._guarded:
            file = node.folder / "cassandra.yaml"
            text = file.read_text(encoding="utf-8").replace("AllowAllAuthent", "PasswordAuthent")
            text = text.replace("AllowAllAuthorizer", "CassandraAuthorizer")
            file.write_text(text, encoding="utf-8")
        log = node.folder / "out.log"
        with log.open("ab") as out:
            environment = {**os.environ, **program.environment}
            process = subprocess.Popen(
                program.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        self._processes[address] = process
        deadline = time.monotonic() + self._stack.sizes.start_timeout
        while (reason := program.healthy()) is not None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise CannotStart(
                    f"Cassandra at {address} did not start ({reason}). Remedy: see {log}"
                )
            time.sleep(0.5)

    def kill(self, address: str) -> None:
        """Ends one node by SIGKILL, like a machine that loses its power. It keeps its disk."""
        process = self._processes.pop(address)
        process.kill()
        process.wait(timeout=30)

    def freeze(self, address: str) -> None:
        """Stops one node by SIGSTOP, like a machine that hangs: its connections stay open, and
        nothing answers.
        """
        self._processes[address].send_signal(signal.SIGSTOP)

    def thaw(self, address: str) -> None:
        """Lets a frozen node continue."""
        self._processes[address].send_signal(signal.SIGCONT)

    def nodetool(self) -> Path:
        """A script that runs nodetool on the node whose address is its first argument."""
        script = self._stack.state / "nodetool"
        cases = "".join(
            f'  {node.address}) exec {shlex.join(nodetool_command(self._stack, node))} "$@" ;;\n'
            for node in self.nodes
        )
        script.write_text(
            (
                f'#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}esac\necho "no node $host" '
                ">&2\nexit 1\n"
            ),
            encoding="utf-8",
        )
        script.chmod(0o755)
        return script

    def settings(self) -> Mapping[str, str]:
        """MAILSLICE_* of the cluster."""
        return {
            "MAILSLICE_CASSANDRA_CONTACT_POINTS": ",".join(node.address for node in self.nodes),
            "MAILSLICE_CASSANDRA_PORT": str(self._stack.ports.cassandra_port),
            "MAILSLICE_NODETOOL": f"{as_word(self.nodetool())} {{host}}",
        }
