"""TLS to Cassandra: a wire that speaks TLS to us and plain to the real server behind it."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mailslice.model.errors import BadSetting
from mailslice.stores.cassandra.session import CassandraSession
from tests.services.cassandra.fake_servers import Wire, listening


def certificate(folder, address="127.0.0.1"):
    """A self-signed certificate of an address, and its key, in files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cassandra of a test")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
    )
    built = built.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    built = built.add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False
    )
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem = built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for path, content in ((folder / "cert.pem", pem), (folder / "key.pem", secret)):
        path.write_bytes(content)
    return folder / "cert.pem", folder / "key.pem"


def tls_wire(port, certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    wire = Wire(port)

    def serve(connection):
        try:
            secure = context.wrap_socket(connection, server_side=True)
        except (ssl.SSLError, OSError):
            connection.close()
            return
        wire.serve(secure)

    return listening(serve)


def test_rows_come_over_tls(fresh_module, tmp_path):
    settings = fresh_module.settings.cassandra
    cert, key = certificate(tmp_path)
    with tls_wire(settings.port, cert, key) as port:
        secure = settings.model_copy(update={"port": port, "tls_enabled": True, "tls_ca": cert})
        with CassandraSession(secure) as session:
            assert session.execute("SELECT key FROM system.local") == [("local",)]


def test_a_certificate_of_an_unknown_authority_is_refused(fresh_module, tmp_path):
    settings = fresh_module.settings.cassandra
    with (
        tls_wire(settings.port, *certificate(tmp_path)) as port,
        pytest.raises(BadSetting, match="MAILSLICE_CASSANDRA_TLS_"),
    ):
        CassandraSession(settings.model_copy(update={"port": port, "tls_enabled": True}))


def test_a_certificate_of_another_host_is_refused_unless_names_are_not_checked(
    fresh_module, tmp_path
):
    settings = fresh_module.settings.cassandra
    cert, key = certificate(tmp_path, "192.0.2.1")
    with tls_wire(settings.port, cert, key) as port:
        secure = settings.model_copy(update={"port": port, "tls_enabled": True, "tls_ca": cert})
        with pytest.raises(BadSetting, match="TLS failed"):
            CassandraSession(secure)
        with CassandraSession(secure.model_copy(update={"tls_verify_host": False})) as session:
            assert session.execute("SELECT key FROM system.local") == [("local",)]


def test_tls_to_a_server_that_speaks_none_is_a_setting_to_fix(fresh_module):
    with pytest.raises(BadSetting, match="MAILSLICE_CASSANDRA_TLS_"):
        CassandraSession(fresh_module.settings.cassandra.model_copy(update={"tls_enabled": True}))
