"""The settings file of a submitted step holds every setting, and no error shows one."""

import stat
from pathlib import Path

import pytest

from mailslice.maintenance.artifacts import Artifacts, RunFolder
from mailslice.maintenance.submission import (
    read_outcome,
    read_settings,
    write_outcome,
    write_settings,
)
from mailslice.model.errors import BadSetting, StoreUnavailable
from mailslice.model.settings import artifacts_of, load_settings, variables

SET = {
    "MAILSLICE_ARTIFACTS": "s3a://b/p",
    "MAILSLICE_CASSANDRA_CONTACT_POINTS": "10.0.0.1,10.0.0.2",
    "MAILSLICE_RABBITMQ_URL": "amqp://u:'p\"%23=\u00e4@10.0.0.1:5672/%2F",
    "MAILSLICE_S3_ACCESS_KEY": "key",
    "MAILSLICE_S3_SECRET_KEY": "'quoted'",
    "MAILSLICE_DUTY_GRACE": "90s",
    "MAILSLICE_DUTY_SPARK_CONF": "spark.a=b,spark.c=d",
    "MAILSLICE_RELAY_TIMEOUT": "2500ms",
}


def test_what_is_read_is_what_was_written_and_its_owner_alone_may_read_it(tmp_path):
    environ = {name: value for name, value in SET.items() if name in variables()}
    settings = load_settings(environ, tmp_path / "none")
    file = write_settings(settings, tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_settings(file) == settings


def test_what_was_not_set_stays_so_and_follows_what_is_stored(tmp_path):
    """The windows of the view and MAILSLICE_QUEUE_SHARED: a value that is set must be the same."""
    settings = load_settings({"MAILSLICE_QUEUE_BUCKET_COUNT": "3"}, tmp_path / "none")
    read = read_settings(write_settings(settings, tmp_path))
    assert read.queue.model_fields_set == settings.queue.model_fields_set == {"bucket_count"}
    assert read.duty.model_fields_set == {"artifacts"}


@pytest.mark.parametrize("url", ["amqp://10.0.0.1:5672/%2F", None])
def test_a_user_of_his_own_variable_is_read_again(tmp_path, url):
    environ = {"MAILSLICE_RABBITMQ_USERNAME": "a:b", "MAILSLICE_RABBITMQ_PASSWORD": "p@/"}
    environ |= {"MAILSLICE_RABBITMQ_URL": url} if url else {}
    settings = load_settings(environ, tmp_path / "none")
    assert read_settings(write_settings(settings, tmp_path)).rabbitmq == settings.rabbitmq


def test_the_default_of_the_artifacts_is_a_path_for_a_driver_elsewhere(tmp_path):
    settings = load_settings({}, tmp_path / "none")
    read = read_settings(write_settings(settings, tmp_path))
    assert read.duty.artifacts == artifacts_of(settings) != ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("pa55", "no settings that mailslice wrote"),
        ('{"duty": {"grace": "pa55", "new": 1}}', r"another version .*duty\.grace, duty\.new"),
    ],
)
def test_a_file_that_is_no_settings_is_refused_without_showing_it(tmp_path, text, says):
    file = tmp_path / "settings.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadSetting, match=says) as raised:
        read_settings(file)
    assert "pa55" not in str(raised.value)


def test_only_the_word_of_the_same_attempt_is_read(tmp_path):
    folder = RunFolder(Artifacts(str(tmp_path), load_settings({}).s3), "queue_size", "spool", "r")
    assert read_outcome(folder, "a") is None
    write_outcome(folder, "a", StoreUnavailable("Cassandra is away"))
    assert read_outcome(folder, "a") == (4, "Cassandra is away")
    assert read_outcome(folder, "b") is None
    write_outcome(folder, "b", ValueError("no\n\tat x\n" * 9))
    assert read_outcome(folder, "b") == (1, "ValueError: no")
    Path(folder.artifacts.path(folder.file("submit.json"))).write_text("{")
    assert read_outcome(folder, "b") is None
