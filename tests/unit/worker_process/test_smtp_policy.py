from __future__ import annotations

import ipaddress
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from mailslice.model.errors import BadSetting
from mailslice.model.settings import CassandraSettings, SmtpInSettings
from mailslice.stores.tls import client_tls
from mailslice.worker.smtp_server.policy import client_address, client_key, is_loopback, policy_of

WORLD = [
    ("0.0.0.0/0",),
    ("::/0",),
    ("0.0.0.0/1", "128.0.0.0/1"),
    ("10.0.0.0/8", "11.0.0.0/8"),
    ("2000::/3",),
]


def settings(**given: Any) -> SmtpInSettings:
    return SmtpInSettings.model_validate(given)


def with_passphrase(folder: Path) -> tuple[Path, Path]:
    """A certificate and its key, which is encrypted."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    made = "openssl req -x509 -newkey rsa:2048 -days 2 -subj /CN=localhost -passout pass:secret"
    subprocess.run(
        [*made.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    return certificate, key


@pytest.mark.parametrize("networks", WORLD)
@pytest.mark.parametrize("auth", [{}, {"username": "u", "password": SecretStr("p")}])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "", "mx.example.org"])
def test_a_port_the_world_reaches_never_allows_the_world(
    networks: tuple[str, ...], auth: dict[str, Any], host: str
) -> None:
    with pytest.raises(BadSetting, match="that is an open relay") as caught:
        policy_of(settings(host=host, allowed_networks=networks, **auth))
    assert f"MAILSLICE_SMTP_IN_HOST={host!r}" in str(caught.value)


@pytest.mark.parametrize("networks", WORLD)
def test_on_loopback_any_network_may_be_named(networks: tuple[str, ...]) -> None:
    assert len(policy_of(settings(host="127.0.0.1", allowed_networks=networks)).networks) == len(
        networks
    )


@pytest.mark.parametrize("networks", [("10.0.0.0/8",), ("198.51.100.0/24", "2001:db8::/32"), ()])
def test_networks_that_somebody_owns_are_allowed_on_any_address(networks: tuple[str, ...]) -> None:
    assert (
        tuple(
            str(n) for n in policy_of(settings(host="0.0.0.0", allowed_networks=networks)).networks
        )
        == networks
    )


def test_the_default_binds_loopback_and_allows_only_it() -> None:
    default = SmtpInSettings()
    policy = policy_of(default)
    assert is_loopback(default.host)
    assert [
        policy.allows(ipaddress.ip_address(a))
        for a in ("127.0.0.1", "127.9.9.9", "::1", "192.0.2.1", "10.0.0.1")
    ] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"allowed_networks": ("10.0.0.1/8",)}, "'10.0.0.1/8' is not a network"),
        ({"allowed_networks": ("everywhere",)}, "'everywhere' is not a network"),
        (
            {"username": "u"},
            (
                "MAILSLICE_SMTP_IN_USERNAME and MAILSLICE_SMTP_IN_PASSWORD: "
                "one is set without the other"
            ),
        ),
        ({"password": SecretStr("p")}, "one is set without the other"),
        ({"host": "0.0.0.0", "username": "u", "password": SecretStr("p")}, "there is no TLS"),
        (
            {"tls_key": Path("/k")},
            (
                "MAILSLICE_SMTP_IN_TLS_CERTIFICATE and MAILSLICE_SMTP_IN_TLS_KEY: "
                "one is set without the other"
            ),
        ),
        (
            {"tls_key": Path("/no/k"), "tls_certificate": Path("/no/c")},
            "'/no/c' with _TLS_KEY='/no/k' cannot be loaded",
        ),
    ],
)
def test_incomplete_settings_are_refused_by_name(given_: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSetting) as caught:
        policy_of(settings(**given_))
    assert says in str(caught.value)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    certificate, key = with_passphrase(tmp_path)
    with pytest.raises(BadSetting, match="allowed: a key without a passphrase"):
        policy_of(settings(tls_certificate=certificate, tls_key=key))
    store = CassandraSettings(tls_certificate=certificate, tls_key=key)
    with pytest.raises(BadSetting, match="allowed: a key without a passphrase"):
        client_tls(store, "CASSANDRA")
    assert "phrase" not in capfd.readouterr().err


def test_a_certificate_in_a_folder_that_may_not_be_read_is_named(monkeypatch):
    def denied(*_: object, **__: object) -> None:
        raise PermissionError("the folder is another's")

    files = {"tls_key": Path("/no/k"), "tls_certificate": Path("/no/c")}
    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(BadSetting, match="MAILSLICE_SMTP_IN_TLS_CERTIFICATE='/no/c' with _TLS_KEY"):
        policy_of(settings(**files))


@pytest.mark.parametrize(
    ("user", "password", "good"),
    [
        (b"u", b"p", True),
        (b"u", b"q", False),
        (b"v", b"p", False),
        (b"", b"", False),
        (b"\xff", b"p", False),
    ],
)
def test_only_the_user_with_the_password_is_accepted(
    user: bytes, password: bytes, *, good: bool
) -> None:
    assert (
        policy_of(settings(username="u", password=SecretStr("p"))).accepts(user, password) is good
    )


def test_without_a_user_nobody_is_accepted() -> None:
    assert not policy_of(settings()).accepts(b"", b"")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.1", 25), "192.0.2.1"),
        (("::ffff:127.0.0.1", 25, 0, 0), "127.0.0.1"),
        (("fe80::1%eth0", 25, 0, 2), "fe80::1"),
        (None, None),
        (("nonsense", 1), None),
    ],
)
def test_the_client_is_known_by_its_address(peer: object, address: str | None) -> None:
    assert client_address(peer) == (address and ipaddress.ip_address(address))


def test_an_unknown_client_is_not_allowed() -> None:
    assert not policy_of(settings()).allows(None)


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
    ],
)
def test_one_client_is_an_address_or_a_network_of_which_anybody_has_all(
    address: str, key: str
) -> None:
    assert client_key(ipaddress.ip_address(address)) == key


def test_passwords_in_the_clear_can_be_allowed_behind_a_port_of_this_machine() -> None:
    open_to_all = {"host": "0.0.0.0", "username": "u", "password": "p"}
    with pytest.raises(BadSetting, match="MAILSLICE_SMTP_IN_AUTH_WITHOUT_TLS=true"):
        policy_of(SmtpInSettings.model_validate(open_to_all))
    allowed = policy_of(SmtpInSettings.model_validate({**open_to_all, "auth_without_tls": True}))
    assert (allowed.offers_auth, allowed.auth_without_tls, allowed.tls.context()) == (
        True,
        True,
        None,
    )
