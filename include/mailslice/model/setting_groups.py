"""The settings of each component: one frozen class each, a field a variable. docs/settings.md is
generated from them (`make docs`).
"""

from __future__ import annotations

import shlex
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote, urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mailslice.model.configuration import ViewConfiguration
from mailslice.model.durations import format_duration
from mailslice.model.names import QueueTable
from mailslice.model.setting_types import Duration, Group, Host, Hosts, LimitRules, Time, Words
from mailslice.model.spark_conf import SparkConf
from mailslice.model.throttling import Limits

_MAX_RETENTION = timedelta(days=3650)
_LARGEST_OBJECT = 5 * 1024**3
"""What S3 takes in one PUT."""


class Consistency(StrEnum):
    """Levels at which inserts, marks and deleted checks keep mail safe; weaker ones are refused."""

    LOCAL_QUORUM = "LOCAL_QUORUM"
    QUORUM = "QUORUM"
    EACH_QUORUM = "EACH_QUORUM"
    ALL = "ALL"


class CassandraSettings(Group):
    """Where the view is."""

    contact_points: Hosts = ("127.0.0.1",)
    """hosts, comma-separated; host:port is read too"""
    port: int = Field(9042, ge=1, le=65535)
    """native protocol port"""
    keyspace: str = Field("apache_james", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,47}$")
    """James' keyspace"""
    datacenter: str | None = None
    """local data centre; the first contact point's when unset"""
    username: str | None = None
    password: SecretStr | None = None
    consistency: Consistency = Consistency.LOCAL_QUORUM
    """of inserts, marks and reads that decide; QUORUM when several data centres write"""
    tls_enabled: bool = False
    tls_ca: Path | None = None
    """PEM file of the authority"""
    tls_certificate: Path | None = None
    """PEM file of the client's certificate"""
    tls_key: Path | None = None
    """PEM file of the client's key"""
    tls_verify_host: bool = True
    timeout: Time = timedelta(seconds=10)
    """of one request"""

    @field_validator("consistency", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value


class OwnSettings(Group):
    """mailslice's own keyspace and bucket."""

    keyspace: str = Field("mailslice", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,47}$")
    """mailslice's own tables: runs, locks, delays, marks that wait"""
    replication: str = ""
    """CQL map, used when the keyspace is created; James' keyspace's own when empty"""
    bucket: str = "mailslice"
    """mailslice's own bucket: quarantine and kept content; each deployment needs one of its own"""


class RabbitSettings(Group):
    """The broker."""

    username: str | None = None
    """with PASSWORD, instead of a user in the two URLs: of any characters, none of them escaped"""
    password: SecretStr | None = None
    """goes with USERNAME"""
    url: SecretStr = Field(
        SecretStr("amqp://guest:guest@127.0.0.1:5672/%2F"), validate_default=True
    )
    """amqp:// or amqps://user:password@host:port/vhost"""
    management_url: SecretStr = Field(
        SecretStr("http://guest:guest@127.0.0.1:15672"), validate_default=True
    )
    """management API, user:password in it or the URL's own"""
    tls_ca: Path | None = None
    """PEM file of the authority"""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_verify_host: bool = True
    timeout: Time = timedelta(seconds=10)
    """of connecting, of a confirm, of a blocked connection"""

    @field_validator("url", "management_url")
    @classmethod
    def _with_login(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        """The URL with USERNAME and PASSWORD in it, where they are given."""
        username, password = info.data.get("username"), info.data.get("password")
        if username is None and password is None:
            return value
        if username is None or password is None:
            raise ValueError("MAILSLICE_RABBITMQ_USERNAME and _PASSWORD: allowed is both or none")
        default = cls.model_fields[str(info.field_name)].default
        scheme, separator, rest = value.get_secret_value().partition("://")
        user, at, place = rest.rpartition("@")
        if at and user and value != default:
            raise ValueError(
                "it has a user, and MAILSLICE_RABBITMQ_USERNAME is set; allowed is one of them"
            )
        login = f"{quote(username, safe='')}:{quote(password.get_secret_value(), safe='')}"
        return SecretStr(f"{scheme}{separator}{login}@{place or rest}")


class BlobStrategy(StrEnum):
    """James' two ways to name blobs."""

    PASSTHROUGH = "passthrough"
    DEDUPLICATION = "deduplication"


class BlobIdKind(StrEnum):
    """Ids with or without FAMILY_GENERATION_ before them."""

    PLAIN = "plain"
    GENERATION_AWARE = "generation-aware"


class HashEncoding(StrEnum):
    """How the hash of a deduplicated blob is spelled: James' JVM property
    `james.blob.id.hash.encoding`.
    """

    BASE64 = "base64"
    BASE64URL = "base64url"
    HEX = "hex"


class BlobSettings(Group):
    """How blob ids are made."""

    strategy: BlobStrategy = BlobStrategy.PASSTHROUGH
    """passthrough: a random UUID, deleted with the mail; deduplication: SHA-256, left to blob_gc;
    refused beside a James of passthrough"""
    id: BlobIdKind = BlobIdKind.PLAIN
    """generation-aware: FAMILY_GENERATION_ before the id"""
    hash_encoding: HashEncoding = HashEncoding.BASE64
    """of deduplicated ids, as James' property james.blob.id.hash.encoding says"""
    generation_duration: Time = timedelta(days=30)
    """of one generation"""
    family: int = Field(1, ge=0)


class BlobProvider(StrEnum):
    """Who runs the content store."""

    S3 = "s3"
    AZURE = "azure"
    GCS = "gcs"


class S3Settings(Group):
    """The content store."""

    provider: BlobProvider = BlobProvider.S3
    """`s3`; `azure`: ENDPOINT is `https://ACCOUNT.blob.core.windows.net`, ACCESS_KEY the account,
    SECRET_KEY its key; `gcs`: SECRET_KEY is the JSON of a service account. Without keys those of
    the machine. James knows `s3` only, and only there is a missing bucket created"""
    endpoint: str = "http://127.0.0.1:9000"
    """URL of the S3 API; user:password in it are the two keys, where they are not given"""
    bucket: str = Field(
        "james", min_length=3, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    )
    """James' default bucket"""
    access_key: str | None = None
    secret_key: SecretStr | None = None
    region: str = "us-east-1"
    ca: Path | None = None
    """PEM file of the authority"""
    timeout: Time = timedelta(seconds=10)
    """of one request"""

    @model_validator(mode="before")
    @classmethod
    def _keys_of_url(cls, values: object) -> object:
        """The keys leave the URL here, before anything shows it."""
        if not isinstance(values, dict) or "@" not in str(values.get("endpoint", "")):
            return values
        head, _, partition = str(values["endpoint"]).rpartition("@")
        scheme, separator, userinfo = head.partition("://")
        # What is before the @ may be a key: only what is behind it is refused, and shown.
        if not separator:
            return {**values, "endpoint": partition.rpartition("://")[2]}
        user, _, password = userinfo.partition(":")
        words = {"access_key": user, "secret_key": password}
        keys = {name: unquote(word) for name, word in words.items() if word}
        return {**keys, **values, "endpoint": f"{scheme}://{partition}"}

    @field_validator("endpoint")
    @classmethod
    def _web(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            _ = parts.port
        except ValueError:
            parts = urlsplit("")
        plain = parts.hostname and not parts.query and not parts.fragment
        if parts.scheme not in ("http", "https") or not plain:
            raise ValueError("allowed: http:// or https://host:port")
        return value


class QueueSettings(Group):
    """The queue's shape, as James is configured; the stored configuration wins (see `config
    check`).
    """

    table: QueueTable = QueueTable.V4
    slice_window: Duration = timedelta(hours=1)
    """width of a slice"""
    bucket_count: int = Field(1, ge=1, le=2**31 - 1)
    browse_start_pace: int = Field(1000, ge=1, le=2**31 - 1)
    """James' updateBrowseStartPace"""
    quorum: bool = False
    """declare new work queues as quorum queues"""
    quorum_group_size: int = Field(1, ge=1)
    """x-quorum-initial-group-size of new quorum queues"""
    delivery_limit: int | None = Field(None, ge=1)
    """x-delivery-limit of new quorum queues"""
    shared: bool = True
    """James works on these queues, too: marks go only when the broker was seen drained; kept in the
    own keyspace, followed when unset (`mailslice config shared`)"""
    max_mail_bytes: int = Field(150 * 1024 * 1024, ge=1, le=_LARGEST_OBJECT)
    """largest mail that is accepted; S3 takes 5 GiB in one piece"""
    stage_marks: Words = ()
    """queues whose workers write stage marks, comma-separated: a mail whose worker died while it
    was sending is failed, never sent twice"""

    @field_validator("table", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("slice_window")
    @classmethod
    def _whole(cls, value: timedelta) -> timedelta:
        ViewConfiguration(slice_window=value)
        return value

    @property
    def configuration(self) -> ViewConfiguration:
        """The configuration of the view that the settings ask for."""
        return ViewConfiguration(self.slice_window, self.bucket_count, self.browse_start_pace)


class StuckMode(StrEnum):
    """What stuck_mails does with a mail whose holder hangs."""

    SHADOW = "shadow"
    """Write down what would be done."""
    CLOSE = "close"
    """Quarantine and deleted mark: it is never sent twice, and a person decides."""
    RECOVER = "recover"
    """By its stage marks: give it to another, fail it, or complete it."""


class DutySettings(Group):
    """Where duties keep what they write, and for how long."""

    artifacts: str = ""
    """folder, or s3a:// prefix: plans, reports, Data Docs; when empty, `.state/artifacts` of the
    clone, and where mailslice is installed as a package, `~/.local/state/mailslice/artifacts`"""
    retention: Time = timedelta(days=90)
    """of ledger rows and artifacts; at most 10 years"""
    grace: Duration = timedelta(minutes=15)
    """default time after its end before a slice counts as closed"""
    rate_cassandra: int = Field(0, ge=0)
    """writes a second that one run may ask of Cassandra; 0 = no limit"""
    rate_s3: int = Field(0, ge=0)
    """keys a second that one run may delete or copy in S3; 0 = no limit"""
    rate_rabbitmq: int = Field(0, ge=0)
    """messages a second that one run may publish or take; 0 = no limit"""
    small_rows: int = Field(50_000, ge=0)
    """a plan over at most so many rows, and the steps after it, run in one process without Spark
    (queue_cleanup, queue_size); 0 = always Spark"""
    spark_master: str = "local[*]"
    """Spark master of duties that run without Airflow"""
    spark_driver_memory: str = Field("1g", pattern=r"^\d+[kmgKMG]$")
    """of the driver that `duty run` starts; on a cluster only where you set it"""
    spark_driver_options: str = ""
    """more options of the JVM of Spark's driver, without Airflow; -XX:TieredStopAtLevel=1 takes a
    quarter of the CPU off a short run"""
    spark_conf: SparkConf = ()
    """options of Spark for every duty, with and without Airflow: a JSON object, or `spark.a=b` with
    commas between; they win over the few that mailslice gives; docs/scale.md has those of each
    kind of cluster"""
    nodetool: str = ""
    """nodetool of one node of Cassandra, for reclaim: a command, {host} in it is the node's
    address, such as `ssh {host} nodetool`"""
    usual_factor: float = Field(10.0, ge=1)
    """a plan of more than so many times what the last runs did fails the gate"""
    max_counters_share: float = Field(0.2, ge=0, le=1)
    """share of all mailboxes whose counters one run may change, if it is not told"""
    stuck_mode: StuckMode = StuckMode.CLOSE
    """of stuck_mails, when a run is not told; recover needs MAILSLICE_QUEUE_STAGE_MARKS"""
    stuck_factor: float = Field(10.0, ge=1, le=1000)
    """a mail is stuck when it is held for longer than so many times the p99 of its queue"""
    stuck_at_least: Time = timedelta(minutes=10)
    """and for at least this long"""
    stuck_alert_from: int = Field(10, ge=1)
    """so many decisions in one run are unusual, and the report says so"""
    notify: str = "log"
    """notifiers of failed runs, comma-separated: log, email, webhook"""
    notify_email: Words = ()
    """recipients of the email notifier, comma-separated; sent by Airflow's connection
    smtp_default
    """
    notify_webhook: SecretStr | None = None
    """URL of the webhook notifier: it gets one JSON object by POST; http or https"""

    @field_validator("retention")
    @classmethod
    def _within_ttl(cls, value: timedelta) -> timedelta:
        """Rows go by TTL, and Cassandra before 5.0 refuses one that ends after 2038."""
        if value > _MAX_RETENTION:
            raise ValueError(f"allowed: at most {format_duration(_MAX_RETENTION)}")
        return value

    @field_validator("nodetool")
    @classmethod
    def _words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"{error}; allowed: a command as a shell reads it") from None
        return value

    @field_validator("notify_webhook")
    @classmethod
    def _web(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("allowed: a URL of http or https")
        return value


class GcSettings(Group):
    """What blob_gc counts as references, beside the sources that it always reads."""

    absent_sources: Words = ()
    """sources whose table is known to be missing, comma-separated: enqueuedMailsV3,
    enqueuedMailsV4, messageV3, attachmentV2..."""
    sources: str = ""
    """more columns that hold blob ids: table:column,column;keyspace.table:column (James' keyspace
    when none is named); text, or collections"""
    volatile_sources: Words = ()
    """sources that may shrink to nothing from run to run, comma-separated, such as enqueuedMailsV4
    where James cleans it; no gate for them"""
    unread_columns: Words = ()
    """columns that are named like blob ids and are none, or of other buckets, comma-separated:
    table.column; any other that no source reads fails the gate"""
    max_share: float = Field(0.1, ge=0, le=1)
    """share of all blobs that one run may delete, if it is not told"""


class AlertSettings(Group):
    """From where on a person is told, by the notifiers of MAILSLICE_DUTY_NOTIFY; every report says
    it, too.
    """

    browse_lag: Duration = timedelta(days=3)
    """now less browseStart; 0s = never"""
    content_lag: Duration = timedelta(days=7)
    """now less contentStart; 0s = never"""
    oldest_mail: Duration = timedelta(days=1)
    """age of the oldest live mail; 0s = never"""
    dead_letters: int = Field(10, ge=0)
    """more messages than that in a dead letter queue"""
    consumers: int = Field(1, ge=0)
    """fewer consumers than that on a work queue; 0 = never"""
    lost: int = Field(0, ge=0)
    """more lost mails than that in an audit"""
    bare: int = Field(0, ge=0)
    """more mails without content than that in an audit"""
    zombies: int = Field(0, ge=0)
    """more mails than that which one run of stuck_mails had to decide about"""
    repeat: Duration = timedelta(hours=20)
    """an alert that goes on is told again after this long; a daily run tells it daily"""


class AirflowSettings(Group):
    """What an Airflow of yours reads when it parses the DAGs."""

    config: str = ""
    """YAML file of the DAG settings: schedules, connection, pool, prefix, approvals; read from the
    environment of the DAG processor, scheduler and workers alone, see airflow.md"""


class LogFormat(StrEnum):
    """How a process of the worker writes its log on standard error."""

    TEXT = "text"
    JSON = "json"


class LogSettings(Group):
    """What `worker run` and `worker smtp-in` write on standard error (docs/monitoring.md)."""

    format: LogFormat = LogFormat.TEXT
    """of messages for people; with json every line of the log is one JSON object"""
    events: bool = True
    """a line of JSON for each event of a mail: accepted, attempt, delivered, deferred, bounced,
    dead_letter..."""
    addresses: bool = False
    """sender and recipients of the mail in its events; without it only how many recipients"""


class SmtpInSettings(Group):
    """`mailslice worker smtp-in`."""

    host: Host = "127.0.0.1"
    """address to listen on"""
    port: int = Field(2525, ge=0, le=65535)
    allowed_networks: Words = ("127.0.0.0/8", "::1/128")
    """clients that may send without AUTH"""
    username: str | None = None
    """AUTH user; with a password, clients outside the allowed networks may send after AUTH"""
    password: SecretStr | None = None
    tls_certificate: Path | None = None
    """PEM; with the key, STARTTLS is offered and AUTH needs it"""
    tls_key: Path | None = None
    hostname: str | None = None
    """name in the greeting and in Received lines; the machine's when unset"""
    max_recipients: int = Field(10_000, ge=1)
    """recipients of one mail"""
    auth_without_tls: bool = False
    """allow passwords to come in the clear where MAILSLICE_SMTP_IN_HOST is not loopback: behind a
    port that is published on loopback only"""
    max_connections: int = Field(100, ge=1)
    """clients at once: outside of the allowed networks, and as many within them"""
    connections_per_client: int = Field(10, ge=1)
    """connections at once from one address (of IPv6 from one /64) outside of the
    allowed networks
    """
    timeout: Time = timedelta(minutes=5)
    """of one command, and of each 64 KiB of a mail; a whole mail has 10 minutes, and a second for
    each 100 KB"""
    refuse_bare_line_ends: bool = True
    """refuse a mail with a bare CR or LF in it (550) from clients outside of the allowed networks:
    other servers may read it as two"""
    health_port: int = Field(0, ge=0, le=65535)
    """port of /livez, /readyz and /metrics; 0 = off"""


class GiveUp(StrEnum):
    """What becomes of a mail that the next hop will never take."""

    DEAD_LETTER = "dead-letter"
    BOUNCE = "bounce"


class StartTls(StrEnum):
    """Whether the next hop is spoken to by TLS (RFC 3207)."""

    NONE = "none"
    MAY = "may"
    MUST = "must"
    VERIFIED = "verified"


_SWITCH = TypeAdapter(bool)


def _start_tls(value: object) -> object:
    """`true` means verified, `false` none."""
    try:
        return StartTls.VERIFIED if _SWITCH.validate_python(value) else StartTls.NONE
    except ValidationError:
        return value


class RelaySettings(Group):
    """The relay handler's next hop."""

    host: Host = "127.0.0.1"
    port: int = Field(25, ge=1, le=65535)
    timeout: Time = timedelta(seconds=60)
    """of connecting, of each command, and of each 64 KiB of a mail"""
    answer_timeout: Time = timedelta(minutes=8)
    """of the answer to a mail that was sent whole, never less than MAILSLICE_RELAY_TIMEOUT; who
    waits too short sends mails twice that a slow server has taken (RFC 5321 4.5.3.2.6 names 10m:
    then raise MAILSLICE_DUTY_STUCK_AT_LEAST, too); with the 15 minutes that sending may take, from
    when a handler has the mail, it must fit into RabbitMQ's consumer_timeout (30m)"""
    starttls: Annotated[StartTls, BeforeValidator(_start_tls)] = StartTls.NONE
    """TLS with the next hop: none; may (when it is offered, without a look at the certificate);
    must (nothing is sent without it); verified (must, and the certificate is the host's); true is
    verified, false is none"""
    implicit_tls: bool = False
    """TLS from the first byte, as on port 465; verified, unless MAILSLICE_RELAY_STARTTLS=must"""
    tls_ca: Path | None = None
    """PEM; the certificates that verify the next hop, instead of the system's"""
    tls_certificate: Path | None = None
    """PEM; shown to a next hop that asks who we are"""
    tls_key: Path | None = None
    username: str | None = None
    """AUTH user (PLAIN, LOGIN); with a password"""
    password: SecretStr | None = None
    auth_without_tls: bool = False
    """allow the password to cross a network in the clear"""
    mails_per_connection: int = Field(100, ge=1)
    """mails on one connection, which is kept for 30 s without one; 1 = a new one for each mail"""
    max_age: Duration = timedelta(days=5)
    """of a mail that is still tried again; an older one is given up"""
    give_up: GiveUp = GiveUp.DEAD_LETTER
    """of what is refused for good or too old: dead-letter, or bounce (needs
    MAILSLICE_WORKER_BOUNCE_QUEUE)"""
    rates: LimitRules = ()
    """mails a minute for a recipient domain, by all workers of a queue together:
    example.com=60,*.example.com=600,*=1200; the closest pattern holds, for each domain by itself; 0
    = no limit"""
    connections: LimitRules = ()
    """connections at once that carry mail for a recipient domain, in the same form"""

    @property
    def limits(self) -> Limits:
        return Limits(self.rates, self.connections)


class WorkerSettings(Group):
    """The consumer process."""

    health_host: str = "127.0.0.1"
    """address of liveness and metrics, of smtp-in, too"""
    health_port: int = Field(0, ge=0, le=65535)
    """port of /livez, /readyz and /metrics; 0 = off"""
    memory_budget_mib: int = Field(96, ge=8)
    """content in flight, MiB, a process"""
    record_every: Duration = Field(timedelta(seconds=3), le=timedelta(minutes=1))
    """between two records of what a process holds, which stuck_mails needs; above 10s a census may
    hold the work queue for three of them; 0s = no record"""
    maildir: Path | None = None
    """folder of the Maildir handler"""
    bounce_queue: str | None = None
    """queue that reports to senders (RFC 3464) are enqueued into, for recipients that fail; none
    are written when unset"""
    back_off_base: Duration = Field(
        timedelta(seconds=30), ge=timedelta(seconds=1), le=timedelta(days=27)
    )
    """pause after the first failed attempt at a mail"""
    back_off_factor: float = Field(2.0, ge=1, le=100)
    """by which each further pause is longer"""
    back_off_cap: Duration = Field(
        timedelta(hours=1), ge=timedelta(seconds=1), le=timedelta(days=27)
    )
    """longest of these pauses, but for a tenth"""
    attempts: int = Field(150, ge=0)
    """failed attempts after which a mail is given up; 150 of the default pauses take six days; 0 =
    never"""
    give_up: GiveUp = GiveUp.DEAD_LETTER
    """of such a mail: dead-letter, or bounce (needs MAILSLICE_WORKER_BOUNCE_QUEUE)"""
