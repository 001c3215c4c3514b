"""Connects to Cassandra by the settings: addresses, credentials, the driver's cluster.

Protocol v4 is pinned. Every version since 2.2 speaks it, and start-up need not negotiate. The
driver would compute v5's checksums in Python, which would slow the hot path.
"""

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import cassandra
from cassandra import ConsistencyLevel, DriverException, UnresolvableContactPoints
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    Session,
)
from cassandra.connection import ConnectionBusy, DefaultEndPoint
from cassandra.io.libevreactor import LibevConnection
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)
from cassandra.query import tuple_factory

from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.host_port import host_port
from mailslice.model.settings import CassandraSettings
from mailslice.stores.cassandra.coordinator_retry import PINNED, Timestamps, has_several_nodes
from mailslice.stores.cassandra.failures import translated
from mailslice.stores.tls import client_tls

PROTOCOL_VERSION = 4
LONGEST_PAUSE = 5.0
"""Seconds between two attempts to connect to a node that is away."""
_STALLED_SECONDS = 3.0


class AuthenticationFailed(Exception):
    """Replaces the driver's error, which ends reconnection: a starting node may refuse a login."""


class _QueueingConnection(LibevConnection):  # type: ignore[misc]
    """Requests wait behind a large one that fills the socket, where the driver fails them at once.
    A node that takes no byte for three seconds gets no more requests: the driver asks another one.
    """

    _full_since = math.inf

    @classmethod
    def factory(cls, *args: Any, **options: Any) -> Any:
        try:
            return super().factory(*args, **options)
        except cassandra.AuthenticationFailed as error:
            raise AuthenticationFailed(str(error)) from error

    @property
    def _socket_writable(self) -> bool:
        return time.monotonic() - self._full_since < _STALLED_SECONDS

    @_socket_writable.setter
    def _socket_writable(self, writable: bool) -> None:
        """The driver sets False each time that its write fills the socket."""
        self._full_since = math.inf if writable else time.monotonic()

    def handle_write(self, *event: Any) -> None:
        """As the driver's, but resets the stall: the driver sets True only after it reads False."""
        super().handle_write(*event)
        if not self.deque:
            self._full_since = math.inf

    def send_msg(self, message: object, request_id: int, *args: Any, **options: Any) -> Any:
        """As the driver's, which leaks the stream id of a request that it refuses."""
        try:
            return super().send_msg(message, request_id, *args, **options)
        except ConnectionBusy:
            with self.lock:
                self.in_flight -= 1
                self.request_ids.append(request_id)
            raise


class Reconnection(ExponentialReconnectionPolicy):  # type: ignore[misc]
    """Resolves the contact points again while no node is connected. The driver resolves them once,
    and containers may all come back at other addresses.
    """

    cluster: Cluster
    _looking: threading.Thread | None = None

    def new_schedule(self) -> Iterator[float]:
        for pause in super().new_schedule():
            yield pause
            with suppress(Exception):  # an error would end the attempts
                # On another thread: without DNS, a look-up blocks one of the driver's two for long.
                if self._looking is None or not self._looking.is_alive():
                    self._looking = threading.Thread(target=self._look_up, daemon=True)
                    self._looking.start()

    def _look_up(self) -> None:
        cluster = self.cluster
        for host, port in cluster.contact_points:
            with suppress(Exception):
                if cluster.is_shutdown or any(x.get_pool_state() for x in tuple(cluster.sessions)):
                    return
                for *_, resolved in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                    cluster.add_host(DefaultEndPoint(*resolved[:2]), refresh_nodes=False)


def contact_points(settings: CassandraSettings) -> list[tuple[str, int]]:
    """(host, port) of each contact point, which may be `host:port` or `[v6]:port`. BadSetting."""
    if not settings.contact_points:
        raise BadSetting("MAILSLICE_CASSANDRA_CONTACT_POINTS is empty: at least one host")
    return [_point(text, settings.port) for text in settings.contact_points]


def _point(text: str, port: int) -> tuple[str, int]:
    host, separator, digits = text.rpartition(":")
    if not separator or (text.count(":") > 1 and not text.startswith("[")):
        return text.strip("[]"), port  # a name, an IPv4 address, or a bare IPv6 address
    if text.endswith("]"):
        return text[1:-1], port
    if not host or not digits.isdecimal() or not 1 <= int(digits) <= 65535:
        raise BadSetting(f"MAILSLICE_CASSANDRA_CONTACT_POINTS: {text!r} is not host or host:port")
    return host.strip("[]"), int(digits)


def address(settings: CassandraSettings) -> str:
    """The contact points as messages show them."""
    return ", ".join(host_port(host, port) for host, port in contact_points(settings))


def credentials(settings: CassandraSettings) -> PlainTextAuthProvider | None:
    """User and password if both are set, None if neither is. Raises BadSetting if only one is."""
    if settings.username is None and settings.password is None:
        return None
    if settings.username is None or settings.password is None:
        raise BadSetting(
            "MAILSLICE_CASSANDRA_USERNAME and MAILSLICE_CASSANDRA_PASSWORD go together: one of "
            "them is not set"
        )
    return PlainTextAuthProvider(settings.username, settings.password.get_secret_value())


def connect(settings: CassandraSettings) -> tuple[Cluster, Session]:
    try:
        cluster = _cluster(settings)
    except UnresolvableContactPoints:
        raise StoreUnavailable(
            f"Cassandra at {address(settings)}: none of these hosts "
            "(MAILSLICE_CASSANDRA_CONTACT_POINTS) has an address"
        ) from None
    try:
        return cluster, _session(cluster)
    except Exception as error:
        known = {host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}
        cluster.shutdown()
        is_away = isinstance(error, NoHostAvailable)
        if is_away and settings.datacenter and known and settings.datacenter not in known:
            names = ", ".join(sorted(known))
            raise BadSetting(
                f"MAILSLICE_CASSANDRA_DATACENTER={settings.datacenter!r}: Cassandra at "
                f"{address(settings)} knows: {names}"
            ) from None
        raise translated(error, address(settings)) from error


def _session(cluster: Cluster) -> Session:
    """Connects. With several nodes the driver needs the schema to know which node has a row.

    While a node comes back, the nodes do not agree on the schema. Without it the driver asks any
    node, which is slower but works.
    """
    session = cluster.connect()
    if has_several_nodes(cluster):
        cluster.schema_metadata_enabled = True
        with suppress(DriverException):
            cluster.refresh_schema_metadata(max_schema_agreement_wait=0)
    return session


def _cluster(settings: CassandraSettings) -> Cluster:
    points = contact_points(settings)
    patience = max(1.5, min(5.0, 12.0 / len(points)))
    # With several contact points, the driver leaves a node that hangs with open connections after
    # 20 s in place of 60. A single node may take its time.
    beats = {"idle_heartbeat_interval": 10, "idle_heartbeat_timeout": 10} if points[1:] else {}
    profile = partial(
        ExecutionProfile,
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.datacenter or "")),
        consistency_level=ConsistencyLevel.name_to_value[settings.consistency],
        # As James: LWTs of two serial levels on one row would not see each other.
        serial_consistency_level=ConsistencyLevel.SERIAL,
        request_timeout=settings.timeout.total_seconds(),
        row_factory=tuple_factory,
    )
    cluster = Cluster(
        points,
        port=settings.port,
        protocol_version=PROTOCOL_VERSION,
        connection_class=_QueueingConnection,
        execution_profiles={
            EXEC_PROFILE_DEFAULT: profile(),
            PINNED: profile(retry_policy=FallthroughRetryPolicy()),
        },
        auth_provider=credentials(settings),
        ssl_context=client_tls(settings, "CASSANDRA") if settings.tls_enabled else None,
        # Without limit: by default the driver gives a node up after 64 attempts, five minutes.
        reconnection_policy=Reconnection(0.5, LONGEST_PAUSE, max_attempts=None),
        timestamp_generator=Timestamps(),
        connect_timeout=patience,
        control_connection_timeout=patience,
        application_name="mailslice",
        schema_metadata_enabled=False,
        **beats,
    )
    cluster.reconnection_policy.cluster = cluster
    return cluster
