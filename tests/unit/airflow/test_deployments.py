"""Several deployments in one Airflow, each by an Airflow connection."""

import json
import os

import pytest

from mailslice.airflow.deployments import Deployment, deployments
from mailslice.model.errors import BadSetting
from mailslice.model.settings import Settings


@pytest.fixture
def environ(monkeypatch):
    """Sets variables of this process; all of mailslice's are unset before and after."""
    for name in [name for name in os.environ if name.startswith("MAILSLICE_")]:
        monkeypatch.delenv(name)

    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def connection(extra):
    return json.dumps({"conn_type": "generic", "extra": extra})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("", "")]),
        ("mail", [("", "mail")]),
        ("eu_=mail/eu, us_=mail:us", [("eu_", "mail/eu"), ("us_", "mail:us")]),
        ("eu_=mail", [("eu_", "mail")]),
    ],
)
def test_the_setting_names_prefixes_and_connections(text, expected):
    found = deployments({"MAILSLICE_CONNECTION": text})
    assert [(one.prefix, one.connection) for one in found] == expected


@pytest.mark.parametrize(
    "text", ["a,b", "eu_=a,b", "eu_=a,eu_=b", "eu_=a,us_=a", "e u=a", "=a", "eu_=", "a b", ","]
)
def test_a_setting_that_does_not_tell_its_deployments_apart_is_refused(text):
    with pytest.raises(BadSetting, match=r"MAILSLICE_CONNECTION=.* allowed: the id"):
        deployments({"MAILSLICE_CONNECTION": text})


def test_settings_of_the_connection_win_over_those_of_the_environment(environ):
    environ(
        MAILSLICE_CONNECTION="mail",
        MAILSLICE_S3_BUCKET="shared",
        MAILSLICE_QUEUE_BUCKET_COUNT="2",
        AIRFLOW_CONN_MAIL=connection(
            {
                "MAILSLICE_S3_BUCKET": "own",
                "MAILSLICE_S3_SECRET_KEY": 'any "characters"',
                "MAILSLICE_CASSANDRA_PORT": 19042,
                "MAILSLICE_QUEUE_SHARED": False,
            }
        ),
    )
    settings = Deployment(connection="mail").settings()
    assert (settings.s3.bucket, settings.cassandra.port) == ("own", 19042)
    assert (settings.queue.bucket_count, settings.queue.shared) == (2, False)
    assert settings.s3.secret_key.get_secret_value() == 'any "characters"'
    assert "MAILSLICE_S3_SECRET_KEY" not in os.environ


def test_a_process_that_enters_a_deployment_hands_it_on(environ, monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.update(
        MAILSLICE_CONNECTION="mail", AIRFLOW_CONN_MAIL=connection({"MAILSLICE_S3_BUCKET": "own"})
    )
    assert Deployment(connection="mail").enter().s3.bucket == "own"
    assert (os.environ["MAILSLICE_S3_BUCKET"], "MAILSLICE_CONNECTION" in os.environ) == (
        "own",
        False,
    )


def test_without_a_connection_the_environment_holds(environ):
    environ(MAILSLICE_S3_BUCKET="here")
    (only,) = deployments()
    assert only.settings().s3.bucket == "here"
    assert isinstance(only.settings(), Settings)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "'mail' does not exist; add it: airflow connections add mail"),
        (connection({}), "'mail' has no settings"),
        (connection({"bucket": "s3cret"}), "bucket in its extra is not a setting"),
        (connection({"MAILSLICE_CONNECTION": "x"}), "MAILSLICE_CONNECTION in its extra"),
        (connection({"MAILSLICE_S3_BUCKET": ["s3cret"]}), "MAILSLICE_S3_BUCKET in its extra is l"),
        (connection({"MAILSLICE_S3_BUKET": "s3cret"}), "Did you mean MAILSLICE_S3_BUCKET"),
    ],
)
def test_a_connection_that_gives_no_settings_is_refused_without_its_values(environ, value, words):
    if value is not None:
        environ(AIRFLOW_CONN_MAIL=value)
    with pytest.raises(BadSetting) as raised:
        Deployment(connection="mail").settings()
    assert words in str(raised.value)
    assert "s3cret" not in str(raised.value)
