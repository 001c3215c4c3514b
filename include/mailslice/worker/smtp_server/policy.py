"""Who may send by SMTP, by the settings. An open relay is refused before the port opens."""

import hmac
import ipaddress
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mailslice.model.errors import BadSetting
from mailslice.model.settings import SmtpInSettings

log = logging.getLogger(__name__)

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_WIDEST = {4: 8, 6: 16}
"""Shortest prefix of an allowed network for strangers: nobody owns more than a /8."""


class RenewedTls:
    """A TLS context that follows its files: certificates are renewed. `make`: None without TLS."""

    def __init__(self, make: Callable[[], ssl.SSLContext | None], *files: Path | None) -> None:
        self._make = make
        self._files = [file for file in files if file is not None]
        self._times, self._context = self._file_times(), make()

    def context(self) -> ssl.SSLContext | None:
        """The context, created again when one of the files was changed."""
        try:
            if (times := self._file_times()) != self._times:
                self._context, self._times = self._make(), times
        except (BadSetting, OSError) as error:  # the files may be half written
            log.warning("TLS stays as it is: %s", error, extra={"action": "tls_unchanged"})
        return self._context

    def _file_times(self) -> list[int]:
        return [file.stat().st_mtime_ns for file in self._files if os.access(file, os.R_OK)]


@dataclass(frozen=True, slots=True)
class SmtpPolicy:
    """The settings, checked."""

    networks: tuple[IPNetwork, ...]
    username: str | None
    password: str | None
    tls: RenewedTls
    auth_without_tls: bool
    refuse_bare_line_ends: bool = True

    @property
    def offers_auth(self) -> bool:
        return self.username is not None

    def allows(self, address: IPAddress | None) -> bool:
        """Whether a client at `address` may send without AUTH."""
        return address is not None and any(address in network for network in self.networks)

    def accepts(self, username: bytes, password: bytes) -> bool:
        """Whether these are the user and the password, compared in constant time."""
        if self.username is None or self.password is None:
            return False
        same_name = hmac.compare_digest(username, self.username.encode())
        return hmac.compare_digest(password, self.password.encode()) and same_name


def policy_of(settings: SmtpInSettings) -> SmtpPolicy:
    """The policy, or BadSetting naming what is malformed, incomplete or open to the world."""
    networks = tuple(_network(text) for text in settings.allowed_networks)
    loopback = is_loopback(settings.host)
    if not loopback:
        _refuse_open_relay(settings.host, networks)
    password = settings.password.get_secret_value() if settings.password else None
    require_both("MAILSLICE_SMTP_IN", USERNAME=settings.username, PASSWORD=password)
    tls = RenewedTls(partial(_tls, settings), settings.tls_certificate, settings.tls_key)
    auth_without_tls = loopback or settings.auth_without_tls
    if settings.username is not None and tls.context() is None and not auth_without_tls:
        raise BadSetting(
            f"MAILSLICE_SMTP_IN_USERNAME is set, MAILSLICE_SMTP_IN_HOST={settings.host!r} is not "
            "loopback, and there is no TLS: passwords would cross the network in the clear; "
            "set MAILSLICE_SMTP_IN_TLS_CERTIFICATE and _TLS_KEY, "
            "or, where only this machine reaches the port, MAILSLICE_SMTP_IN_AUTH_WITHOUT_TLS=true"
        )
    return SmtpPolicy(
        networks,
        settings.username,
        password,
        tls,
        auth_without_tls=auth_without_tls,
        refuse_bare_line_ends=settings.refuse_bare_line_ends,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a port at `host`. The only such name is localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def client_address(peer: object) -> IPAddress | None:
    """The address in a socket's peer name. An IPv4-mapped IPv6 address becomes IPv4."""
    host = str(peer[0]).partition("%")[0] if isinstance(peer, tuple) else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def client_key(address: IPAddress | None) -> str:
    """What counts as one client: an IPv4 address, or an IPv6 /64, which one client can own."""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


def _network(text: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise BadSetting(
            f"MAILSLICE_SMTP_IN_ALLOWED_NETWORKS: {text!r} is not a network ({error}); "
            "allowed: 192.0.2.0/24, 2001:db8::/32, comma-separated"
        ) from None


def _refuse_open_relay(host: str, networks: tuple[IPNetwork, ...]) -> None:
    """Raises BadSetting. Neighbours are joined first: two halves of the internet are all of it."""
    v4 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv4Network))
    v6 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv6Network))
    joined: list[IPNetwork] = [*v4, *v6]
    for network in joined:
        if network.prefixlen < _WIDEST[network.version]:
            raise BadSetting(
                f"MAILSLICE_SMTP_IN_ALLOWED_NETWORKS holds {network}, and MAILSLICE_SMTP_IN_HOST="
                f"{host!r} is not loopback: that is an open relay; allowed: networks of "
                f"/{_WIDEST[network.version]} or longer, and AUTH for everybody else"
            )


def _tls(settings: SmtpInSettings) -> ssl.SSLContext | None:
    certificate, key = settings.tls_certificate, settings.tls_key
    require_both("MAILSLICE_SMTP_IN", TLS_CERTIFICATE=certificate, TLS_KEY=key)
    if certificate is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, "MAILSLICE_SMTP_IN", certificate, key)
    return context


def require_both(prefix: str, **pair: object) -> None:
    """Raises BadSetting when one of two settings (name without prefix -> value) is set alone."""
    if len({value is None for value in pair.values()}) > 1:
        names = " and ".join(f"{prefix}_{name}" for name in pair)
        raise BadSetting(f"{names}: one is set without the other; allowed: both, or none")


def load_certificate(
    context: ssl.SSLContext, prefix: str, certificate: Path, key: Path | None
) -> None:
    try:
        context.load_cert_chain(certificate, key, password="")  # None would ask the terminal
    except (OSError, ssl.SSLError) as error:
        raise BadSetting(
            f"{prefix}_TLS_CERTIFICATE={str(certificate)!r} with _TLS_KEY={str(key)!r} "
            f"cannot be loaded: {error}; allowed: a key without a passphrase"
        ) from error
