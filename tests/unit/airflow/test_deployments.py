"""Several deployments in one Airflow, each by an Airflow connection."""

import json
import os
import subprocess
import sys

import pytest

from mailslice.airflow.deployments import Deployment, deployments, leave
from mailslice.model.errors import BadSetting
from mailslice.model.settings import Settings, load_settings


@pytest.fixture
def environ(monkeypatch):
    """Sets variables of this process; all of mailslice's are unset before and after."""
    for name in [name for name in os.environ if name.startswith("MAILSLICE_")]:
        monkeypatch.delenv(name)

    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    yield put
    leave()


def values(settings):
    """Without where they were read: a process that was entered has all in its environment."""
    return settings.model_copy(update={"source": "environment", "beside": ()})


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


def test_the_connection_may_be_named_by_a_file(environ, tmp_path):
    (tmp_path / "name").write_text("eu_=eu\n")
    environ(
        MAILSLICE_CONNECTION_FILE=str(tmp_path / "name"),
        MAILSLICE_ARTIFACTS="/runs",
        AIRFLOW_CONN_EU=connection({"MAILSLICE_S3_BUCKET": "eu-mail"}),
    )
    before = dict(os.environ)
    (deployment,) = deployments()
    assert deployment.prefix == "eu_"
    assert values(deployment.enter()) == load_settings() == values(deployment.settings())
    assert load_settings().s3.bucket == "eu-mail"
    leave()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "text",
    [
        "a,b",
        "eu_=a,b",
        "eu_=a,eu_=b",
        "eu_=a,us_=a",
        "e u=a",
        "=a",
        "eu_=",
        "a b",
        ",",
        "..=a",
        "_eu=a",
    ],
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
                "MAILSLICE_S3_ACCESS_KEY": "key",
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


def test_a_process_started_for_a_deployment_has_its_settings_and_no_connection(environ):
    environ(
        MAILSLICE_CONNECTION="mail",
        MAILSLICE_S3_REGION="shared",
        AIRFLOW_CONN_MAIL=connection({"MAILSLICE_S3_BUCKET": "own"}),
    )
    handed_on = {**os.environ, **Deployment(connection="mail").environment()}
    assert (load_settings(handed_on).s3.bucket, load_settings(handed_on).s3.region) == (
        "own",
        "shared",
    )


def test_a_process_enters_one_deployment_after_the_other_and_keeps_nothing_of_the_first(environ):
    eu = {"MAILSLICE_S3_BUCKET": "eu-mail", "MAILSLICE_S3_REGION": "eu"}
    environ(
        MAILSLICE_CONNECTION="eu_=eu,us_=us",
        MAILSLICE_ARTIFACTS="/runs",
        MAILSLICE_S3_REGION="shared",
        AIRFLOW_CONN_EU=connection(eu),
        AIRFLOW_CONN_US=connection({"MAILSLICE_OWN_BUCKET": "us-own"}),
    )
    before = dict(os.environ)
    first, second = deployments()
    for _ in range(2):
        assert values(first.enter()) == load_settings() == values(first.settings())
        assert first.settings().duty.artifacts == "/runs/eu_"
        assert values(second.enter()) == load_settings()
        s3, own = load_settings().s3, load_settings().own
        assert (s3.bucket, s3.region, own.bucket) == ("james", "shared", "us-own")
        assert deployments() == (first, second)
    leave()
    assert dict(os.environ) == before


def test_of_a_value_and_its_file_the_connections_wins(environ, tmp_path):
    (tmp_path / "key").write_text("of the file")
    environ(
        MAILSLICE_S3_ACCESS_KEY="key",
        MAILSLICE_S3_SECRET_KEY_FILE=str(tmp_path / "shared"),
        MAILSLICE_CASSANDRA_PASSWORD="shared",
        AIRFLOW_CONN_MAIL=connection(
            {
                "MAILSLICE_S3_SECRET_KEY": "own",
                "MAILSLICE_CASSANDRA_PASSWORD_FILE": str(tmp_path / "key"),
            }
        ),
    )
    settings = Deployment(connection="mail").settings()
    assert settings.s3.secret_key.get_secret_value() == "own"
    assert settings.cassandra.password.get_secret_value() == "of the file"


@pytest.mark.parametrize(
    ("shared", "own", "expected"),
    [
        ("s3a://runs/a/", {}, "s3a://runs/a/eu_"),
        ("/runs", {}, "/runs/eu_"),
        ("/runs", {"MAILSLICE_ARTIFACTS": "/own"}, "/own/eu_"),
    ],
)
def test_deployments_never_share_a_folder_of_runs(environ, shared, own, expected):
    """Scheduled runs of the same minute have the same id in both, and so the same plan's name."""
    environ(
        MAILSLICE_ARTIFACTS=shared,
        AIRFLOW_CONN_MAIL=connection({"MAILSLICE_S3_BUCKET": "bucket", **own}),
    )
    assert Deployment("eu_", "mail").settings().duty.artifacts == expected
    assert Deployment("", "mail").settings().duty.artifacts == (
        own.get("MAILSLICE_ARTIFACTS") or shared
    )


def test_a_secrets_backend_of_airflow_is_asked(tmp_path):
    """The real Airflow in a process of its own, with the backend that reads a file."""
    file = tmp_path / "connections.json"
    extra = {"MAILSLICE_S3_ACCESS_KEY": "key", "MAILSLICE_S3_SECRET_KEY": "s3cret"}
    extra |= {"MAILSLICE_OWN_BUCKET": "of-the-backend"}
    file.write_text(json.dumps({"mail": {"conn_type": "generic", "extra": extra}}))
    others = {name: value for name, value in os.environ.items() if "MAILSLICE" not in name}
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        env={
            **others,
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__SECRETS__BACKEND": (
                "airflow.secrets.local_filesystem.LocalFilesystemBackend"
            ),
            "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(file)}),
            "MAILSLICE_CONNECTION": "eu_=mail",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert asked.stdout.splitlines()[-1:] == ["eu_ of-the-backend s3cret"], asked.stderr
    assert "s3cret" not in asked.stderr


ASK = """
from mailslice.airflow.deployments import deployments
(one,) = deployments()
settings = one.settings()
print(one.prefix, settings.own.bucket, settings.s3.secret_key.get_secret_value())
"""


def test_without_a_connection_the_environment_holds(environ):
    environ(MAILSLICE_S3_BUCKET="here")
    (only,) = deployments()
    assert only.settings().s3.bucket == "here"
    assert isinstance(only.settings(), Settings)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "'mail' is in no secrets backend, environment or database of Airflow; add it"),
        (connection({}), "'mail' has no settings"),
        (connection({"bucket": "s3cret"}), "bucket in its extra is not a setting"),
        (connection({"MAILSLICE_CONNECTION": "x"}), "MAILSLICE_CONNECTION in its extra"),
        (connection({"MAILSLICE_S3_BUCKET": ["s3cret"]}), "MAILSLICE_S3_BUCKET in its extra is l"),
        (connection({"MAILSLICE_RABBITMQ_URL": "amqp://u:s3cret@h/"}), "both or none"),
        (
            connection({"MAILSLICE_CASSANDRA_PORT": "s3cret@x"}),
            "MAILSLICE_CASSANDRA_PORT='***@x' (in the Airflow connection 'mail')",
        ),
        (json.dumps({"conn_type": "generic", "extra": "s3cret"}), "its extra is no JSON object"),
        (json.dumps({"conn_type": "generic", "extra": "[1]"}), "its extra is no JSON object"),
        (connection({"MAILSLICE_S3_BUKET": "s3cret"}), "Did you mean MAILSLICE_S3_BUCKET"),
        (
            connection({"MAILSLICE_S3_BUKET": "s3cret"}),
            "MAILSLICE_S3_BUKET (in the Airflow connection 'mail') is not a setting",
        ),
    ],
)
def test_a_connection_that_gives_no_settings_is_refused_without_its_values(environ, value, words):
    if value is not None:
        environ(AIRFLOW_CONN_MAIL=value)
    with pytest.raises(BadSetting) as raised:
        Deployment(connection="mail").settings()
    assert words in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("prefix", ["", "eu_"])
def test_an_error_says_whether_a_setting_is_of_the_connection_or_of_the_environment(
    environ, prefix, tmp_path
):
    (tmp_path / "port").write_text("x")
    environ(
        MAILSLICE_S3_BUCKET="b",
        MAILSLICE_CASSANDRA_PORT_FILE=str(tmp_path / "port"),
        AIRFLOW_CONN_MAIL=connection({"MAILSLICE_OWN_BUCKET": "b"}),
    )
    deployment = Deployment(prefix, connection="mail")
    for load in (deployment.settings, deployment.enter):
        with pytest.raises(BadSetting) as raised:
            load()
        says = str(raised.value)
        assert "MAILSLICE_OWN_BUCKET='b' (in the Airflow connection 'mail')" in says
        assert "MAILSLICE_S3_BUCKET='b' (in the environment)" in says
        assert "MAILSLICE_CASSANDRA_PORT='x' (in the environment)" in says
