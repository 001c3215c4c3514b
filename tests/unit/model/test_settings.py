"""Settings by environment and by the file that `make run` writes."""

import re
from datetime import timedelta
from pathlib import Path
from typing import get_args
from urllib.parse import unquote, urlsplit

import pytest

from mailslice.model.errors import BadSetting
from mailslice.model.names import QueueTable
from mailslice.model.settings import BlobStrategy, groups, load_settings, variables
from stack.setting_meanings import meanings
from tests.unit.model.james_properties import JAMES_PROPERTIES

NO_FILE = Path("/nonexistent")
UNITS = re.compile(
    r"bytes|MiB|writes|keys|messages|rows|mails|recipients|connections|decisions|factor|attempts|"
    r"consumers|buckets|replicas|deliveries|deletes|number|times",
    re.IGNORECASE,
)


def test_without_any_variable_the_defaults_of_the_contract_hold():
    settings = load_settings({}, NO_FILE)
    assert (settings.own.keyspace, settings.queue.table, settings.queue.shared) == (
        "mailslice",
        QueueTable.V4,
        True,
    )
    assert (settings.duty.retention, settings.blob.strategy) == (
        timedelta(days=90),
        BlobStrategy.PASSTHROUGH,
    )
    assert settings.queue.model_fields_set == set()


def test_variables_are_read_and_which_were_given_is_known():
    settings = load_settings(
        {
            "MAILSLICE_QUEUE_SLICE_WINDOW": "10m",
            "MAILSLICE_QUEUE_TABLE": "V3",
            "MAILSLICE_CASSANDRA_CONTACT_POINTS": "a, b:1",
            "PATH": "/bin",
        },
        NO_FILE,
    )
    assert settings.queue.configuration.slice_window == timedelta(minutes=10)
    assert settings.queue.model_fields_set == {"slice_window", "table"}
    assert settings.cassandra.contact_points == ("a", "b:1")


def test_an_empty_variable_counts_as_unset():
    assert load_settings({"MAILSLICE_QUEUE_BUCKET_COUNT": ""}, NO_FILE).queue.bucket_count == 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MAILSLICE_CASSANDRA_PORT", "many", "MAILSLICE_CASSANDRA_PORT='many'"),
        ("MAILSLICE_CASSANDRA_PORT", "70000", "less than or equal to 65535"),
        (
            "MAILSLICE_CASSANDRA_CONSISTENCY",
            "ONE",
            "'LOCAL_QUORUM', 'QUORUM', 'EACH_QUORUM' or 'ALL'",
        ),
        ("MAILSLICE_QUEUE_SLICE_WINDOW", "1.5s", "not a positive whole number of seconds"),
        ("MAILSLICE_QUEUE_SLICE_WINDOW", "soon", "is not a duration; allowed"),
        ("MAILSLICE_QUEUE_BUCKET_COUNT", "0", "greater than or equal to 1"),
        ("MAILSLICE_QUEUE_BUCKET_COUNT", "99999999999", "less than or equal to 2147483647"),
        (
            "MAILSLICE_QUEUE_SHARED",
            "perhaps",
            "MAILSLICE_QUEUE_SHARED='perhaps' (in the environment): allowed: true or false",
        ),
        (
            "MAILSLICE_RABBITMQ_TIMEOUT",
            "0s",
            "MAILSLICE_RABBITMQ_TIMEOUT='0s' (in the environment): allowed: more than 0s",
        ),
        ("MAILSLICE_BLOB_GENERATION_DURATION", "PT0S", "allowed: more than 0s"),
        (
            "MAILSLICE_RETENTION",
            "10000d",
            "MAILSLICE_RETENTION='10000d' (in the environment): allowed: at most 3650d",
        ),
        ("MAILSLICE_RABBITMQ_TIMEOUT", "200000d", "allowed: 0s or more, at most 36500d"),
        ("MAILSLICE_DUTY_GRACE", "36501d", "allowed: 0s or more, at most 36500d"),
        ("MAILSLICE_QUEUE_DELIVERY_LIMIT", "9" * 20, "less than or equal to 2147483647"),
        ("MAILSLICE_QUEUE_QUORUM_GROUP_SIZE", "9" * 20, "less than or equal to 2147483647"),
        ("MAILSLICE_SMTP_IN_MAX_CONNECTIONS", "9" * 20, "less than or equal to 2147483647"),
        ("MAILSLICE_QUEUE_MAX_MAIL_BYTES", "5368709121", "less than or equal to 5368709120"),
        ("MAILSLICE_S3_ENDPOINT", "localhost:9000", "allowed: http:// or https://host:port"),
        ("MAILSLICE_S3_ENDPOINT", "http://h:99999", "allowed: http:// or https://host:port"),
        ("MAILSLICE_S3_BUCKET", "a/b c", "MAILSLICE_S3_BUCKET='a/b c'"),
        ("MAILSLICE_OWN_BUCKET", "A B", "MAILSLICE_OWN_BUCKET='A B'"),
        ("MAILSLICE_BLOB_STRATEGY", "other", "'passthrough' or 'deduplication'"),
        ("MAILSLICE_CASSANDRA_KEYSPACE", "a; DROP", "MAILSLICE_CASSANDRA_KEYSPACE='a; DROP'"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(name, value, words):
    with pytest.raises(BadSetting) as raised:
        load_settings({name: value}, NO_FILE)
    assert name in str(raised.value)
    assert words in str(raised.value)
    assert "environment" in str(raised.value)


def test_an_unknown_variable_is_refused_with_the_nearest_name():
    with pytest.raises(
        BadSetting, match=r"MAILSLICE_CASSANDRA_PROT.*Did you mean MAILSLICE_CASSANDRA_PORT"
    ):
        load_settings({"MAILSLICE_CASSANDRA_PROT": "9042"}, NO_FILE)


def test_secrets_are_masked():
    settings = load_settings(
        {
            "MAILSLICE_CASSANDRA_PASSWORD": "hush",
            "MAILSLICE_RABBITMQ_URL": "amqp://u:hush@h/",
            "MAILSLICE_S3_ACCESS_KEY": "key",
            "MAILSLICE_S3_SECRET_KEY": "hush",
        },
        NO_FILE,
    )
    assert "hush" not in repr(settings)


@pytest.mark.parametrize("quote", ["", "'", '"'])
@pytest.mark.parametrize(
    "name", ["CASSANDRA_TIMEOUT", "RELAY_RATES", "QUEUE_BUCKET_COUNT", "CASSANDRA_CONTACT_POINTS"]
)
def test_what_is_before_an_at_is_shown_nowhere_in_a_refusal(name, quote):
    with pytest.raises(BadSetting, match=rf"MAILSLICE_{name}=.*\*\*\*@h") as raised:
        load_settings({f"MAILSLICE_{name}": f"http://u:hush{quote}@h=5"}, NO_FILE)
    assert "hush" not in str(raised.value)


def test_the_file_is_read_only_when_the_environment_names_no_store(tmp_path):
    file = tmp_path / "settings.env"
    file.write_text(
        "MAILSLICE_CASSANDRA_PORT=19042\n# written by make run\nMAILSLICE_S3_REGION=\n"
        "export MAILSLICE_QUEUE_BUCKET_COUNT='3'\n\n",
        encoding="utf-8-sig",
    )
    read = load_settings({"MAILSLICE_QUEUE_BUCKET_COUNT": "5"}, file)
    assert (read.cassandra.port, read.queue.bucket_count, read.source) == (19042, 5, str(file))
    assert read.s3.region == "us-east-1"
    left = load_settings({"MAILSLICE_S3_ENDPOINT": "http://s3"}, file)
    assert (left.cassandra.port, left.queue.bucket_count, left.source) == (9042, 1, "environment")


@pytest.mark.parametrize(
    ("written", "given", "words"),
    [
        ("MAILSLICE_QUEUE_SHARED=maybe", {}, r"^MAILSLICE_QUEUE_SHARED='maybe' \(in FILE\): "),
        ("", {"QUEUE_SHARED": "no way"}, r"^MAILSLICE_QUEUE_SHARED='no way' \(in the environment"),
        ("MAILSLICE_TYPO=1", {}, r"^MAILSLICE_TYPO \(in FILE\) is not a setting"),
        ("", {"TYPO": "1"}, r"^MAILSLICE_TYPO \(in the environment\) is not a setting"),
        (
            "",
            {"S3_SECRET_KEY": "\udcff"},
            r"^MAILSLICE_S3_SECRET_KEY=\*\*\* \(in the environment\)",
        ),
    ],
)
def test_a_refusal_says_where_that_variable_is_set(tmp_path, written, given, words):
    file = tmp_path / "settings.env"
    file.write_text(f"MAILSLICE_CASSANDRA_PORT=19042\n{written}\n")
    environ = {f"MAILSLICE_{name}": value for name, value in given.items()}
    with pytest.raises(BadSetting, match=words.replace("FILE", re.escape(str(file)))):
        load_settings(environ, file)


def test_settings_know_where_each_variable_is_set(tmp_path):
    file = tmp_path / "settings.env"
    file.write_text("MAILSLICE_CASSANDRA_PORT=19042\n")
    both = load_settings({"MAILSLICE_QUEUE_SHARED": "false"}, file)
    assert both.where("MAILSLICE_QUEUE_SHARED") == "in the environment"
    assert both.where("MAILSLICE_CASSANDRA_PORT") == f"in {file}"
    alone = load_settings({"MAILSLICE_S3_ENDPOINT": "http://s3"}, file)
    assert alone.where("MAILSLICE_CASSANDRA_PORT") == "in the environment"


def test_the_variables_of_the_contract_are_all_there():
    contract = (
        "CASSANDRA_CONTACT_POINTS CASSANDRA_PORT CASSANDRA_KEYSPACE CASSANDRA_DATACENTER "
        "CASSANDRA_USERNAME CASSANDRA_PASSWORD CASSANDRA_CONSISTENCY "
        "OWN_KEYSPACE OWN_REPLICATION RABBITMQ_URL RABBITMQ_MANAGEMENT_URL QUEUE_QUORUM "
        "S3_ENDPOINT S3_BUCKET S3_ACCESS_KEY S3_SECRET_KEY S3_REGION S3_CA "
        "BLOB_STRATEGY BLOB_ID BLOB_GENERATION_DURATION BLOB_FAMILY QUEUE_TABLE "
        "QUEUE_SLICE_WINDOW QUEUE_BUCKET_COUNT QUEUE_BROWSE_START_PACE QUEUE_SHARED "
        "ARTIFACTS RETENTION"
    )
    assert {f"MAILSLICE_{name}" for name in contract.split()} <= set(variables())


def test_the_keys_of_s3_may_be_in_its_url_and_leave_it_and_those_that_are_given_win():
    url = {"MAILSLICE_S3_ENDPOINT": "https://key%2F1:se%40cret@host:9000"}
    s3 = load_settings(url, NO_FILE).s3
    assert (s3.endpoint, s3.access_key, s3.secret_key.get_secret_value()) == (
        "https://host:9000",
        "key/1",
        "se@cret",
    )
    assert (
        load_settings({**url, "MAILSLICE_S3_ACCESS_KEY": "mine"}, NO_FILE).s3.access_key == "mine"
    )


AWKWARD = "p@ss/w#rd %2F:ü?&=$'\"\\ "


def test_a_secret_comes_from_a_file_without_the_line_break_at_its_end(tmp_path):
    file = tmp_path / "secret"
    file.write_text(AWKWARD + "\n", encoding="utf-8-sig")  # as Notepad writes it
    given = {"MAILSLICE_S3_ACCESS_KEY": "key", "MAILSLICE_S3_SECRET_KEY_FILE": str(file)}
    settings = load_settings(given, NO_FILE)
    assert settings.s3.secret_key is not None
    assert settings.s3.secret_key.get_secret_value() == AWKWARD


def test_a_file_may_name_a_store_and_then_the_state_file_is_not_read(tmp_path):
    (tmp_path / "url").write_text("amqp://u:p@broker/v", encoding="utf-8")
    state = tmp_path / "settings.env"
    state.write_text("MAILSLICE_S3_ENDPOINT=http://elsewhere:1\n", encoding="utf-8")
    settings = load_settings({"MAILSLICE_RABBITMQ_URL_FILE": str(tmp_path / "url")}, state)
    assert settings.rabbitmq.url.get_secret_value() == "amqp://u:p@broker/v"
    assert settings.s3.endpoint == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"A=1\nMAILSLICE_RABBITMQ_URL=amqp://\xff\n", "line 2 has NUL or no UTF-8 text"),
        (b"\xef\xbb\xbf\n\n\xfc", "line 3 has NUL or no UTF-8 text"),
        (b"MAILSLICE_S3_BUCKET=ja\0mes\n", "line 1 has NUL or no UTF-8 text"),
        (None, "Is a directory"),
    ],
    ids=["latin", "after a mark", "NUL", "directory"],
)
def test_a_state_file_that_cannot_be_read_is_named_with_the_line_and_the_remedy(
    tmp_path, content, words
):
    state = tmp_path / "settings.env"
    state.mkdir() if content is None else state.write_bytes(content)
    allowed = "NAME=value lines in UTF-8. Remove it, or let `make run` write it anew"
    with pytest.raises(BadSetting) as caught:
        load_settings({}, state)
    assert str(caught.value) == f"{state}: {words}; allowed: {allowed}"
    load_settings({"MAILSLICE_RABBITMQ_URL": "amqp://u:p@broker/v"}, state)  # it is not read


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory; allowed: a file with the value of"),
        (b"\n", "the file is empty"),
        (b"\xff\xfe", "line 1 has NUL or no UTF-8 text"),
        (b"secret\0", "line 1 has NUL or no UTF-8 text"),
    ],
)
def test_a_file_that_gives_no_value_is_named(tmp_path, content, words):
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadSetting, match=f"MAILSLICE_CASSANDRA_PASSWORD_FILE='{file}': {words}"):
        load_settings({"MAILSLICE_CASSANDRA_PASSWORD_FILE": str(file)}, NO_FILE)


def test_a_value_and_its_file_are_refused_and_an_unknown_file_variable_is_unknown(tmp_path):
    both = {"MAILSLICE_S3_REGION": "x", "MAILSLICE_S3_REGION_FILE": str(tmp_path / "none")}
    with pytest.raises(BadSetting, match="_REGION and MAILSLICE_S3_REGION_FILE are both set"):
        load_settings(both, NO_FILE)
    with pytest.raises(BadSetting, match=r"MAILSLICE_S3_REGIO_FILE .* is not a setting"):
        load_settings({"MAILSLICE_S3_REGIO_FILE": "x"}, NO_FILE)


def test_a_login_of_any_characters_goes_into_both_urls_of_rabbitmq():
    login = {"MAILSLICE_RABBITMQ_USERNAME": "a:b@c", "MAILSLICE_RABBITMQ_PASSWORD": AWKWARD}
    urls = {
        "MAILSLICE_RABBITMQ_URL": "amqp://broker:5672/%2F",
        "MAILSLICE_RABBITMQ_MANAGEMENT_URL": "http://broker:15672",
    }
    for given, hosts in ((urls, ("broker:5672", "broker:15672")), ({}, ("127.0.0.1:5672",))):
        rabbit = load_settings({**login, **given}, NO_FILE).rabbitmq
        for url, host in zip((rabbit.url, rabbit.management_url), hosts, strict=False):
            parts = urlsplit(url.get_secret_value())
            assert parts.netloc.rpartition("@")[2] == host
            assert (unquote(parts.username or ""), unquote(parts.password or "")) == (
                "a:b@c",
                AWKWARD,
            )
        assert "ss/w" not in repr(rabbit)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"USERNAME": "u"}, "_USERNAME and _PASSWORD: allowed is both or none"),
        ({"PASSWORD": "hush"}, "_USERNAME and _PASSWORD: allowed is both or none"),
        (
            {"USERNAME": "u", "PASSWORD": "hush", "URL": "amqp://x:hush@h/"},
            "it has a user, and MAILSLICE_RABBITMQ_USERNAME is set",
        ),
    ],
)
def test_half_a_login_of_rabbitmq_and_two_of_them_are_refused(given, words):
    with pytest.raises(BadSetting, match=words) as raised:
        load_settings({f"MAILSLICE_RABBITMQ_{name}": value for name, value in given.items()})
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "base", ["MAILSLICE_SMTP_IN", "MAILSLICE_WORKER", "MAILSLICE_CASSANDRA", "MAILSLICE"]
)
def test_what_kubernetes_and_docker_make_of_a_service_is_no_setting(base):
    links = {
        f"{base}_SERVICE_HOST": "10.0.0.1",
        f"{base}_SERVICE_PORT": "25",
        f"{base}_SERVICE_PORT_SMTP_TLS": "465",
        f"{base}_PORT": "tcp://10.0.0.1:25",
        f"{base}_PORT_25_TCP": "tcp://10.0.0.1:25",
        f"{base}_PORT_25_TCP_PROTO": "tcp",
        f"{base}_PORT_25_TCP_PORT": "25",
        f"{base}_PORT_25_TCP_ADDR": "10.0.0.1",
        f"{base}_PORT_53_UDP": "udp://10.0.0.1:53",
    }
    assert load_settings(links, NO_FILE) == load_settings({}, NO_FILE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAILSLICE_SMTP_IN_SERVICE_HOSTS", "10.0.0.1"),
        ("MAILSLICE_SMTP_IN_PORT", "10.0.0.1:25"),
        ("MAILSLICE_SMTP_IN_HOST", "tcp://user@10.0.0.1:25"),
        ("MAILSLICE_SMTP_IN_PORTS_25_TCP", "25"),
    ],
)
def test_what_only_resembles_a_service_link_is_still_an_error(name, value):
    with pytest.raises(BadSetting, match=name):
        load_settings({name: value}, NO_FILE)


def test_a_connection_of_airflow_is_refused_outside_of_airflow():
    with pytest.raises(BadSetting, match="MAILSLICE_CONNECTION names an Airflow connection"):
        load_settings({"MAILSLICE_CONNECTION": "mail"}, NO_FILE)


def meaning_of(name):
    """What the setting is for, and James' property, or ""."""
    group, field = variables()[name]
    meaning, _, james = meanings(groups()[group]).get(field, "").partition(" James: ")
    return meaning, james


@pytest.mark.parametrize("name", sorted(variables()))
def test_each_setting_says_in_sentences_what_it_is_for(name):
    meaning, _ = meaning_of(name)
    assert len(meaning.split()) >= 3
    assert meaning[0].isupper() or meaning.startswith("mailslice")
    assert meaning.endswith(".")
    assert all(len(sentence.split()) <= 30 for sentence in re.split(r"(?<=[.:]) ", meaning))


def test_the_properties_of_james_that_settings_name_exist():
    named = {name: meaning_of(name)[1] for name in variables()}
    for name, james in named.items():
        if james:
            file, prop = re.fullmatch(r"(\S+) `([A-Za-z0-9.-]+)`(?: \(.+\))?", james).groups()
            assert prop in JAMES_PROPERTIES[file], name
    assert (
        named["MAILSLICE_QUEUE_BUCKET_COUNT"] == "rabbitmq.properties `mailqueue.view.bucketCount`"
    )


def test_what_must_be_as_james_has_it_names_the_property():
    for group, cls in groups().items():
        assert cls.model_fields.keys() >= cls.SAME_AS_JAMES | cls.SAME_EVERYWHERE, group
    equal = {
        name
        for name, (group, field) in variables().items()
        if field in groups()[group].SAME_AS_JAMES
    }
    assert all(meaning_of(name)[1] for name in equal)
    assert {
        "MAILSLICE_QUEUE_SLICE_WINDOW",
        "MAILSLICE_BLOB_STRATEGY",
        "MAILSLICE_S3_BUCKET",
    } <= equal


def test_numbers_say_what_they_count():
    """A duration carries its unit."""
    unitless = ("port", "share", "factor")
    counted = [
        name
        for name, (group, field) in variables().items()
        if {int, float}
        & set(get_args(kind := groups()[group].model_fields[field].annotation) or (kind,))
        if not any(word in field for word in unitless)
    ]
    assert "MAILSLICE_QUEUE_DELIVERY_LIMIT" in counted
    assert [name for name in counted if not UNITS.search(meaning_of(name)[0])] == []
