"""TLS and AUTH with the next hop, as MAILSLICE_RELAY_* say."""

from __future__ import annotations

import base64
import smtplib
import ssl

from mailslice.model.errors import BadSetting
from mailslice.model.settings import RelaySettings, StartTls
from mailslice.worker.smtp_server.policy import is_loopback, load_certificate, require_both


class LoginRefused(smtplib.SMTPException):
    """The next hop does not take our user and password: the settings are wrong, not the mail."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{code} to AUTH")
        self.code = code
        self.words = words


def start_tls(server: smtplib.SMTP, tls: ssl.SSLContext, *, only_if_offered: bool) -> None:
    """STARTTLS, then EHLO again. Raises when it is refused, unless TLS is optional."""
    if only_if_offered and not server.has_extn("starttls"):
        return
    try:
        server.starttls(context=tls)
    except smtplib.SMTPResponseException:
        if not only_if_offered:
            raise
        return
    server.ehlo_or_helo_if_needed()


def log_in(server: smtplib.SMTP, username: str, password: str) -> None:
    """AUTH PLAIN, or LOGIN where that is not offered (RFC 4954, 4616). Raises LoginRefused."""
    offered = server.esmtp_features.get("auth", "").upper().split()
    if "PLAIN" in offered:
        both = f"\x00{username}\x00{password}"
        code, words = server.docmd("AUTH", f"PLAIN {_base64(both)}")
    elif "LOGIN" in offered:
        code, words = server.docmd("AUTH", f"LOGIN {_base64(username)}")
        if code == 334:
            code, words = server.docmd(_base64(password))
    else:
        raise LoginRefused(535, "the next hop offers neither AUTH PLAIN nor AUTH LOGIN")
    if code != 235:
        raise LoginRefused(code, words.decode("utf-8", "replace"))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def login_of(hop: RelaySettings) -> tuple[str, str] | None:
    """User and password. Raises BadSetting for half of them, or a password in the clear."""
    password = hop.password.get_secret_value() if hop.password else None
    require_both("MAILSLICE_RELAY", USERNAME=hop.username, PASSWORD=password)
    if hop.username is None or password is None:
        return None
    always_tls = hop.implicit_tls or hop.starttls in {StartTls.MUST, StartTls.VERIFIED}
    if not (always_tls or hop.auth_without_tls or is_loopback(hop.host)):
        raise BadSetting(
            f"MAILSLICE_RELAY_USERNAME is set, MAILSLICE_RELAY_HOST={hop.host!r} is not loopback, "
            f"and MAILSLICE_RELAY_STARTTLS={hop.starttls}: the password would cross the network in "
            "the clear; allowed: MAILSLICE_RELAY_STARTTLS=verified (or must), "
            "MAILSLICE_RELAY_IMPLICIT_TLS=true, or MAILSLICE_RELAY_AUTH_WITHOUT_TLS=true"
        )
    return hop.username, password


def tls_of(hop: RelaySettings) -> ssl.SSLContext | None:
    """The TLS context; None without TLS. Raises BadSetting."""
    by_default = hop.implicit_tls and hop.starttls is not StartTls.MUST
    verified = hop.starttls is StartTls.VERIFIED or by_default
    if hop.tls_ca is not None and not verified:
        raise BadSetting(
            f"MAILSLICE_RELAY_TLS_CA={str(hop.tls_ca)!r}: nothing is verified with "
            f"MAILSLICE_RELAY_STARTTLS={hop.starttls}; allowed with it: verified"
        )
    require_both("MAILSLICE_RELAY", TLS_CERTIFICATE=hop.tls_certificate, TLS_KEY=hop.tls_key)
    if hop.starttls is StartTls.NONE and not hop.implicit_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=hop.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise BadSetting(
            f"MAILSLICE_RELAY_TLS_CA={str(hop.tls_ca)!r} cannot be loaded: {error}; "
            "allowed: a file of certificates, PEM"
        ) from error
    if not verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if hop.tls_certificate is not None:
        load_certificate(context, "MAILSLICE_RELAY", hop.tls_certificate, hop.tls_key)
    return context
