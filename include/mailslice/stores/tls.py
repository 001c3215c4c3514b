"""TLS contexts of the stores, from their settings."""

import ssl

from mailslice.model.errors import BadSetting
from mailslice.model.settings import CassandraSettings, PostalSettings, RabbitSettings, S3Settings


def client_tls(
    settings: CassandraSettings | RabbitSettings | PostalSettings, name: str
) -> ssl.SSLContext:
    """The TLS context of MAILSLICE_`name`_TLS_*. Raises BadSetting naming the unusable setting."""
    prefix = f"MAILSLICE_{name}_TLS"
    authorities, certificate, key = settings.tls_ca, settings.tls_certificate, settings.tls_key
    for which, path in {"CA": authorities, "CERTIFICATE": certificate, "KEY": key}.items():
        if path is not None and not path.is_file():
            raise BadSetting(f"{prefix}_{which}={str(path)!r}: no such file")
    try:
        context = ssl.create_default_context(cafile=authorities)
        context.check_hostname = settings.tls_verify_host
        if certificate:
            context.load_cert_chain(certificate, key, password="")  # None would ask the terminal
    except (ssl.SSLError, OSError) as error:
        problem = f"the files are no usable PEM: {error}; allowed: a key without a passphrase"
        raise BadSetting(f"{prefix}_*: {problem}") from error
    return context


def s3_authorities(settings: S3Settings) -> bytes | None:
    """The content of the file MAILSLICE_S3_CA, None when it is not set. Raises BadSetting."""
    if settings.ca is None:
        return None
    try:
        ssl.create_default_context(cafile=settings.ca)
        return settings.ca.read_bytes()
    except OSError as error:
        name = f"MAILSLICE_S3_CA={str(settings.ca)!r}"
        raise BadSetting(f"{name}: {error}; allowed: a PEM file of authorities") from error
