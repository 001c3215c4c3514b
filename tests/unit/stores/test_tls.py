"""TLS to Cassandra and RabbitMQ by their settings."""

import ssl
from pathlib import Path

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.settings import CassandraSettings, RabbitSettings
from mailslice.stores.tls import client_tls

KINDS = pytest.mark.parametrize(
    ("kind", "name"), [(CassandraSettings, "CASSANDRA"), (RabbitSettings, "RABBITMQ")]
)


@KINDS
def test_files_that_cannot_be_used_are_named(kind, name, tmp_path):
    for which in ("ca", "certificate", "key"):
        with pytest.raises(
            BadSetting, match=f"MAILSLICE_{name}_TLS_{which.upper()}='/no/such.pem': no such file"
        ):
            client_tls(kind(**{f"tls_{which}": Path("/no/such.pem")}), name)
    (tmp_path / "bad.pem").write_text("no certificate")
    for which in ("ca", "certificate"):
        with pytest.raises(BadSetting, match=rf"MAILSLICE_{name}_TLS_\*: the files are no usable"):
            client_tls(kind(**{f"tls_{which}": tmp_path / "bad.pem"}), name)


@KINDS
def test_names_are_checked_unless_a_setting_says_otherwise(kind, name):
    assert client_tls(kind(), name).check_hostname
    lax = client_tls(kind(tls_verify_host=False), name)
    assert (lax.check_hostname, lax.verify_mode) == (False, ssl.CERT_REQUIRED)
