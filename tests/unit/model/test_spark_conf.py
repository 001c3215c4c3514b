"""Options of Spark in a setting: read as JSON or pairs; secrets and what is set elsewhere: no."""

from pathlib import Path

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.settings import load_settings


def conf(text):
    environ = {"MAILSLICE_DUTY_SPARK_CONF": text}
    return load_settings(environ, Path("/nonexistent")).duty.spark_conf


@pytest.mark.parametrize(
    "text",
    [
        '{"spark.executor.cores": 2, "spark.jars": "a.jar,b.jar", "spark.x": true}',
        "spark.executor.cores=2, spark.jars=a.jar,b.jar,spark.x=true",
        "spark.executor.cores=2\nspark.jars=a.jar,b.jar\nspark.x=true\n",
    ],
)
def test_json_and_pairs_say_the_same(text):
    assert conf(text) == (
        ("spark.executor.cores", "2"),
        ("spark.jars", "a.jar,b.jar"),
        ("spark.x", "true"),
    )


def test_nothing_is_nothing():
    assert conf("") == conf("{}") == ()


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "command lines"),
        ("spark.hadoop.fs.s3a.access.key", "command lines"),
        ("spark.ssl.keyPassword", "command lines"),
        ("spark.yarn.appMasterEnv.MAILSLICE_RABBITMQ_URL", "reach the driver by themselves"),
        ("spark.master", "MAILSLICE_DUTY_SPARK_MASTER"),
        ("spark.submit.deployMode", "deploy-mode of Airflow's connection"),
        ("spark.yarn.submit.waitAppCompletion", "a step ends when its driver does"),
        ("executor.memory", "no option of Spark"),
    ],
)
def test_an_option_that_may_not_be_here_is_named_without_its_value(key, says):
    with pytest.raises(BadSetting, match=says) as raised:
        conf(f'{{"{key}": "pa55word"}}')
    assert str(raised.value).startswith("MAILSLICE_DUTY_SPARK_CONF=*** (in the environment): ")
    assert "pa55word" not in str(raised.value)


@pytest.mark.parametrize("text", ["{", "[1]", "spark.a", "x=pa55word", '{"spark.a": ["pa55word"]}'])
def test_a_text_that_is_no_options_is_refused_without_showing_it(text):
    with pytest.raises(BadSetting, match="MAILSLICE_DUTY_SPARK_CONF") as raised:
        conf(text)
    assert "pa55word" not in str(raised.value)


@pytest.mark.parametrize(
    "key",
    [
        "spark.kubernetes.driver.secretKeyRef.MAILSLICE_RABBITMQ_URL",
        "spark.kubernetes.driver.secrets.mailslice",
        "spark.kubernetes.authenticate.submission.oauthTokenFile",
        "spark.authenticate.secret.file",
    ],
)
def test_the_name_of_a_secret_is_none(key):
    assert conf(f"{key}=mailslice:url") == ((key, "mailslice:url"),)
