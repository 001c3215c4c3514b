"""RabbitMQ as a node of this stack's own, beside any broker of the machine, with an own Erlang port
mapper.

Debian's wrapper switches to the user rabbitmq when root calls it, and that user cannot enter a
clone below a private folder; so the server's own script is run, as whoever runs the stack.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from stack.debian import debian, inside
from stack.program import CannotStart, Program, answers_http, write_file, write_once
from stack.settings import StackSettings

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
USER = "guest"
PASSWORD = "guest"  # noqa: S105 - RabbitMQ's own first user, which it lets in from loopback alone


def rabbitmq(stack: StackSettings) -> tuple[Program, Program]:
    """Writes the folder of RabbitMQ and gives the programs of the port mapper and of the broker.

    The broker is the installed one, or that of the Debian release in the settings.
    """
    epmd, server = _installed() if not stack.sizes.rabbitmq_release else _of_release(stack)
    folder = stack.state / "rabbitmq"
    (folder / "log").mkdir(parents=True, exist_ok=True)
    _write_cookie(folder / ".erlang.cookie")
    ports = stack.ports
    write_file(
        "rabbitmq.conf",
        folder / "rabbitmq.conf",
        port=ports.rabbitmq_port,
        management_port=ports.rabbitmq_management_port,
    )
    (folder / "enabled_plugins").write_text("[rabbitmq_management].\n", encoding="utf-8")
    shared = {
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(ports.epmd_port),
        "HOME": str(folder),
    }
    own = {
        "NODENAME": _node_name(stack, folder),
        "NODE_PORT": ports.rabbitmq_port,
        "DIST_PORT": ports.rabbitmq_dist_port,
        "MNESIA_BASE": folder / "mnesia",
        "LOG_BASE": folder / "log",
        "SCHEMA_DIR": folder / "schema",
        "GENERATED_CONFIG_DIR": folder / "config",
        "CONFIG_FILE": folder / "rabbitmq.conf",
        "ADVANCED_CONFIG_FILE": folder / "advanced.config",
        "CONF_ENV_FILE": folder / "rabbitmq-env.conf",
        "ENABLED_PLUGINS_FILE": folder / "enabled_plugins",
        "SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} "
        "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
    }
    environment = {
        **shared,
        **{f"RABBITMQ_{name}": str(value) for name, value in own.items()},
        "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the Erlang VM: signals reach it
    }
    (folder / "rabbitmq-env.conf").touch()
    address = f"-address 127.0.0.1 -port {ports.epmd_port}"
    mapper = Program(
        name="epmd",
        command=(*epmd, *address.split(), "-relaxed_command_check"),
        environment=shared,
        healthy=lambda: None,
        ports=("epmd_port",),
        stop_seconds=5,
        priority=1,
    )
    broker = Program(
        name="rabbitmq",
        command=server,
        environment=environment,
        healthy=lambda: answers_http(
            f"http://127.0.0.1:{ports.rabbitmq_management_port}/api/overview", auth=(USER, PASSWORD)
        ),
        ports=("rabbitmq_port", "rabbitmq_management_port", "rabbitmq_dist_port"),
        stop_seconds=30,
        priority=10,
    )
    return mapper, broker


def _write_cookie(file: Path) -> None:
    """Writes the cookie with mode 0400 at once. Erlang sets the mode later: on a busy machine, a
    second Erlang of the start then refuses a file that others may read.
    """
    with suppress(FileExistsError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "w", encoding="ascii") as cookie:
            cookie.write(secrets.token_hex(16).upper())


def _installed() -> tuple[tuple[str, ...], tuple[str, ...]]:
    epmd = shutil.which("epmd")
    if not SERVER.is_file() or epmd is None:
        raise CannotStart("RabbitMQ is not installed. Remedy: apt-get install -y rabbitmq-server")
    return (epmd,), (str(SERVER),)


def _of_release(stack: StackSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    root = debian(stack.sizes.rabbitmq_release, stack.sizes.cache)
    return inside(root, (), "epmd"), inside(root, (stack.state,), str(SERVER))


def _node_name(stack: StackSettings, folder: Path) -> str:
    """The node's name. RabbitMQ keeps data by node name: under another it begins with no queue and
    no message. So the name is written once for each state folder.

    A digest of the folder makes it unique on this machine. An earlier version put the port into the
    name: its data folder gives that name.
    """
    newest = max(
        (
            folder_of_node
            for folder_of_node in (folder / "mnesia").glob("*@localhost")
            if folder_of_node.is_dir()
        ),
        key=lambda folder_of_node: folder_of_node.stat().st_mtime,
        default=None,
    )
    state = hashlib.sha256(str(stack.state).encode("utf-8", "surrogateescape")).hexdigest()
    new = f"mailslice-{stack.profile.value}-{state[:12]}@localhost"
    return write_once(folder / "nodename", newest.name if newest else new).strip()
