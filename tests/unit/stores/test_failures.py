"""The driver's errors in mailslice's classes; the settings of the connection to Cassandra."""

import ssl

import cassandra
import pytest
from cassandra import (
    AuthenticationFailed,
    InvalidRequest,
    OperationTimedOut,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    WriteTimeout,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionShutdown
from cassandra.protocol import OverloadedErrorMessage, SyntaxException
from pydantic import SecretStr

from mailslice.model.errors import BadInput, BadSetting, StoreUnavailable
from mailslice.model.settings import CassandraSettings
from mailslice.stores.cassandra import connection
from mailslice.stores.cassandra.failures import translated

ADDRESS = "db1:9042"


@pytest.mark.parametrize(
    "error",
    [
        NoHostAvailable("no host", {"db1:9042": ConnectionRefusedError(111, "refused")}),
        Unavailable("u", consistency=6, required_replicas=2, alive_replicas=1),
        ReadTimeout("r"),
        WriteTimeout("w", write_type=0),
        cassandra.ReadFailure("rf"),
        cassandra.CoordinationFailure("cf"),
        OperationTimedOut({"db1": "slow"}),
        ConnectionShutdown("closed"),
        OverloadedErrorMessage(0x1001, "busy", None),
        OSError("broken pipe"),
        Unauthorized("Unable to perform authorization of permissions: Cannot achieve consistency"),
        NoHostAvailable("no host", {"a": AuthenticationFailed("Unable to perform authentication")}),
    ],
)
def test_what_may_pass_is_unavailable_with_the_address(error):
    found = translated(error, ADDRESS)
    assert type(found) is StoreUnavailable
    assert f"Cassandra at {ADDRESS} does not answer" in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            AuthenticationFailed("bad password"),
            "MAILSLICE_CASSANDRA_USERNAME, MAILSLICE_CASSANDRA_PASSWORD",
        ),
        (NoHostAvailable("no host", {"a": AuthenticationFailed("bad")}), "refuses the credentials"),
        (Unauthorized("no right"), "lacks a right"),
        (
            NoHostAvailable("no host", {"a": ssl.SSLCertVerificationError("self-signed")}),
            "MAILSLICE_CASSANDRA_TLS_",
        ),
        (
            InvalidRequest("unconfigured table x"),  # James' or mailslice's own
            "are MAILSLICE_CASSANDRA_KEYSPACE and MAILSLICE_OWN_KEYSPACE right?",
        ),
    ],
)
def test_what_only_a_person_mends_names_the_setting(error, words):
    found = translated(error, ADDRESS)
    assert type(found) is BadSetting
    assert words in str(found)
    assert ADDRESS in str(found)


@pytest.mark.parametrize(
    "words",
    [
        "Request is too big: length 17301805 exceeds maximum allowed length 16777216.",
        "Mutation of 17.000MiB is too large for the maximum size of 16.000MiB",
    ],
)
def test_a_row_that_is_too_large_is_no_wrong_setting(words):
    found = translated(InvalidRequest(words), ADDRESS)
    assert type(found) is BadInput
    assert str(found) == f"Cassandra at {ADDRESS} takes no row so large: InvalidRequest: {words}"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("mine"),
        KeyError("x"),
        SyntaxException(0x2000, "our own mistake", None),
        StoreUnavailable("already"),
    ],
)
def test_other_errors_stay_as_they_are(error):
    assert translated(error, ADDRESS) is error


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("db1", ("db1", 9042)),
        ("db1:9999", ("db1", 9999)),
        ("10.0.0.1", ("10.0.0.1", 9042)),
        ("::1", ("::1", 9042)),
        ("[::1]", ("::1", 9042)),
        ("[::1]:9999", ("::1", 9999)),
    ],
)
def test_contact_points_may_say_their_port(text, point):
    assert connection.contact_points(CassandraSettings(contact_points=(text,))) == [point]


@pytest.mark.parametrize("text", ["db1:port", "db1:0", "db1:65536", ":9042"])
def test_a_bad_contact_point_is_named(text):
    with pytest.raises(BadSetting, match=f"MAILSLICE_CASSANDRA_CONTACT_POINTS: '{text}'"):
        connection.contact_points(CassandraSettings(contact_points=(text,)))


def test_no_contact_point_is_refused():
    with pytest.raises(BadSetting, match="MAILSLICE_CASSANDRA_CONTACT_POINTS is empty"):
        connection.contact_points(CassandraSettings(contact_points=()))


def test_addresses_are_shown_with_their_ports():
    assert (
        connection.address(CassandraSettings(contact_points=("db1", "[::1]:9999")))
        == "db1:9042, [::1]:9999"
    )


def test_user_and_password_go_together():
    assert connection.credentials(CassandraSettings()) is None
    assert (
        connection.credentials(CassandraSettings(username="u", password=SecretStr("p"))) is not None
    )
    with pytest.raises(BadSetting, match="go together"):
        connection.credentials(CassandraSettings(username="u"))
