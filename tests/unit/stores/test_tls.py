"""TLS to Cassandra and RabbitMQ by their settings."""

import ssl
import threading
from pathlib import Path

import pytest
from pydantic import SecretStr

from mailslice.model.errors import BadSetting
from mailslice.model.settings import CassandraSettings, RabbitSettings, S3Settings
from mailslice.stores.blobs.async_store import AsyncBlobStore
from mailslice.stores.blobs.fast_s3 import FastRequests
from mailslice.stores.blobs.s3_store import S3BlobStore
from mailslice.stores.blobs.small import SmallObjects
from mailslice.stores.tls import client_tls
from tests.services.worker_process.sink import certificate

KINDS = pytest.mark.parametrize(
    ("kind", "name"), [(CassandraSettings, "CASSANDRA"), (RabbitSettings, "RABBITMQ")]
)
KEYS = {"access_key": "a", "secret_key": SecretStr("s")}
OPENED = (AsyncBlobStore, SmallObjects, lambda *given: S3BlobStore(*given).client)


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


@pytest.mark.parametrize("content", [None, "no certificate", ""])
@pytest.mark.parametrize("opened", OPENED)
def test_authorities_of_s3_that_cannot_be_used_are_named(opened, content, tmp_path):
    file = tmp_path / "s3.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadSetting, match=f"MAILSLICE_S3_CA='{file}': .*; allowed: a PEM file"):
        opened(S3Settings(endpoint="https://s3.example", ca=file), "james")


def test_authorities_of_s3_may_have_words_of_any_language_between_them(tmp_path):
    settings = S3Settings(endpoint="https://s3.example", ca=tmp_path / "s3.pem", **KEYS)
    some, _ = certificate(tmp_path)
    settings.ca.write_bytes("# Autorité de tests\n".encode() + some.read_bytes())
    for opened in OPENED:
        opened(settings, "james")


def test_heads_that_cannot_start_leave_no_thread(tmp_path):
    settings = S3Settings(endpoint="https://s3.example", ca=tmp_path / "none.pem", **KEYS)
    with pytest.raises(BadSetting, match="MAILSLICE_S3_CA"):
        FastRequests(settings, "james").heads(["key"])
    assert "requests to bucket james" not in {one.name for one in threading.enumerate()}
