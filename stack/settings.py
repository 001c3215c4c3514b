"""Settings of the local stack: `MAILSLICE_STACK_*` for `make run`, `MAILSLICE_STACK_TEST_*` for
what `make test` starts.

Versions and sizes are read from `MAILSLICE_STACK_*` by both. The mail settings proper
(`mailslice.model.settings`) know nothing of this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mailslice.model.errors import BadSetting
from mailslice.model.settings import clone_root

PREFIX = "MAILSLICE_STACK_"
TEST_PREFIX = "MAILSLICE_STACK_TEST_"
INNER = (PREFIX + "OWNER", PREFIX + "SCHEDULES")
"""Variables that the stack sets for its own processes, whose children inherit them."""
_TEST_OFFSET = 1000
"""Between the default ports of the two stacks, so that both can be up."""


Model = TypeVar("Model", bound=BaseModel)


class Profile(StrEnum):
    """Which of the two stacks of a clone."""

    RUN = "run"
    TEST = "test"


class S3Server(StrEnum):
    """Which program is the S3 server of a stack."""

    S3PROXY = "s3proxy"
    MOTO = "moto"


def _port(default: int, description: str) -> int:
    port: int = Field(default, ge=1, le=65535, description=description)
    return port


class Ports(BaseModel):
    """Ports of the run stack; those of the test stack are 1000 higher, Airflow's 18080.

    All are below the range of ephemeral ports of Linux.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cassandra_port: int = _port(17042, "Cassandra: native protocol")
    cassandra_storage_port: int = _port(17043, "Cassandra: between nodes")
    cassandra_jmx_port: int = _port(17044, "Cassandra: JMX, for nodetool")
    rabbitmq_port: int = _port(17072, "RabbitMQ: AMQP")
    rabbitmq_management_port: int = _port(17073, "RabbitMQ: management API and pages")
    rabbitmq_dist_port: int = _port(17074, "RabbitMQ: Erlang distribution")
    epmd_port: int = _port(17075, "RabbitMQ: this stack's own Erlang port mapper")
    s3_port: int = _port(17090, "S3 API")
    mariadb_port: int = _port(17036, "MariaDB, where the stack starts it")
    airflow_port: int = _port(8080, "Airflow: pages and API")
    airflow_worker_log_port: int = _port(17093, "Airflow: logs of tasks")
    airflow_trigger_log_port: int = _port(17094, "Airflow: logs of triggers")


class Sizes(BaseModel):
    """Versions and sizes, the same for both stacks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cassandra_version: str = Field("5.0.6", description="version of Cassandra")
    s3proxy_version: str = Field("4.1.0", description="version of the S3 server")
    yarn_version: str = Field("3.3.6", description="version of YARN, for tests only")
    james_version: str = Field("3.8.1", description="version of James, for tests only")
    rabbitmq_release: str = Field(
        "",
        pattern=r"^[a-z]*$",
        description=(
            "release of Debian whose RabbitMQ runs, unpacked into the cache and entered by root: "
            "`trixie` has 4.0; empty: the installed one"
        ),
    )
    s3_server: S3Server = Field(
        S3Server.S3PROXY, description="S3 server: s3proxy, or moto (PyPI), which stores nothing"
    )
    cassandra_heap: str = Field("1500m", pattern=r"^\d+[mg]$", description="heap of Cassandra")
    s3_heap: str = Field(
        "2g",
        pattern=r"^\d+[mg]$",
        description="largest heap of the S3 server, which holds an object while it is written",
    )
    mariadb: bool = Field(
        False,
        description=(
            "whether `make run` starts MariaDB, too, as `make test` does: for databases of Postal"
        ),
    )
    start_timeout: int = Field(180, ge=1, description="seconds a service has until it must answer")
    test_processes: int = Field(
        6,
        ge=0,
        description=(
            "processes that `make test` spreads the files of tests over; they mostly wait. 0 = "
            "none but pytest's own"
        ),
    )
    disk_mib: int = Field(4096, ge=0, description="free MiB that setup and start ask for")
    cache: Path = Field(
        Path("~/.cache/mailslice"), description="folder of the Java parts; clones share it"
    )


class StackSettings(BaseModel):
    """One stack of one clone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: Profile
    root: Path
    state: Path
    ports: Ports
    sizes: Sizes

    def variable(self, field: str) -> str:
        """The environment variable that changes this port or size."""
        own = self.profile is Profile.TEST and field in (*Ports.model_fields, "state")
        return (TEST_PREFIX if own else PREFIX) + field.upper()

    @property
    def settings_file(self) -> Path:
        """The MAILSLICE_* lines of this stack, written once it is up."""
        return self.state / "settings.env"


def stack_settings(
    profile: Profile, environ: Mapping[str, str] | None = None, root: Path | None = None
) -> StackSettings:
    """Settings of one stack.

    Raises BadSetting naming the variable, its value and what is allowed.
    """
    environ = os.environ if environ is None else environ
    _require_known(environ)
    root = root or clone_root()
    prefix = TEST_PREFIX if profile is Profile.TEST else PREFIX
    defaults: dict[str, object] = {}
    if profile is Profile.TEST:
        fields = Ports.model_fields.items()
        defaults = {name: field.default + _TEST_OFFSET for name, field in fields}
        defaults["airflow_port"] = 18080
    ports = _read(Ports, prefix, environ, defaults)
    sizes = _read(Sizes, PREFIX, environ)
    _distinct(ports, prefix)
    state = Path(environ.get(prefix + "STATE") or root / ".state" / profile.value)
    return StackSettings(
        profile=profile,
        root=root,
        state=state.expanduser().absolute(),
        ports=ports,
        sizes=sizes.model_copy(update={"cache": sizes.cache.expanduser().absolute()}),
    )


def stack_variables() -> Mapping[str, tuple[object, str]]:
    """Every MAILSLICE_STACK_* variable with its default and what it is, for docs/settings.md."""
    listed: dict[str, tuple[object, str]] = {
        PREFIX + "STATE": (".state/run", "folder of all state of `make run`")
    }
    for name, field in {**Ports.model_fields, **Sizes.model_fields}.items():
        listed[PREFIX + name.upper()] = (field.default, field.description or "")
    return listed


def _require_known(environ: Mapping[str, str]) -> None:
    known = {
        *stack_variables(),
        *(TEST_PREFIX + name.upper() for name in (*Ports.model_fields, "state")),
    }
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in INNER:
            words = sorted(each.removeprefix(PREFIX) for each in known)
            near = get_close_matches(name.removeprefix(PREFIX), words, 1)
            hint = f". Did you mean {PREFIX}{near[0]}?" if near else ""
            raise BadSetting(f"{name} (in the environment) is no setting of the local stack{hint}")


def _read(
    cls: type[Model],
    prefix: str,
    environ: Mapping[str, str],
    defaults: Mapping[str, object] | None = None,
) -> Model:
    names = {name: prefix + name.upper() for name in cls.model_fields}
    overrides = {name: environ[names[name]] for name in names if environ.get(names[name])}
    try:
        return cls(**{**(defaults or {}), **overrides})
    except ValidationError as error:
        problem = error.errors()[0]
        raise BadSetting(
            f"{names[str(problem['loc'][0])]}={problem['input']!r} (in the environment): "
            f"{problem['msg']}"
        ) from None


def _distinct(ports: Ports, prefix: str) -> None:
    names_by_port: dict[int, str] = {}
    for name, port in ports.model_dump().items():
        if port in names_by_port:
            raise BadSetting(
                f"{prefix}{name.upper()}={port} is the port of "
                f"{prefix}{names_by_port[port].upper()}, too; each needs its own"
            )
        names_by_port[port] = name
