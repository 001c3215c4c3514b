"""The settings of each component: one frozen class each, a field a variable. docs/settings.md is
generated from them (`make docs`).
"""

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

from mailslice.model import setting_types
from mailslice.model.configuration import ViewConfiguration
from mailslice.model.mariadb_url import ALLOWED as MARIADB_URL
from mailslice.model.mariadb_url import MariaDbUrl
from mailslice.model.names import QueueTable
from mailslice.model.setting_types import Duration, Group, Host, Hosts, LimitRules, Time, Words
from mailslice.model.spark_conf import SparkConf
from mailslice.model.throttling import Limits

_MIN_CLAIM_TTL = timedelta(days=7)
"""More than an audit, the plan made by it (24 h each) and the last try of its apply take."""
_MAX_RETENTION = timedelta(days=3650)
"""Rows expire by TTL. Cassandra before 5.0 refuses a TTL that ends after 2038."""
_LONGEST_UNDO = timedelta(days=365)
_BUCKET = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_LARGEST_OBJECT = 5 * 1024**3
"""What S3 takes in one PUT."""


def _mariadb_url(value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
    if value is not None:
        database = MariaDbUrl.parse(value.get_secret_value()).database
        if info.field_name == "url" and not database:
            raise ValueError(f"it names no database; {MARIADB_URL}")
    return value


class Consistency(StrEnum):
    """Levels at which inserts, marks and deleted checks keep mail safe; weaker ones are refused."""

    LOCAL_QUORUM = "LOCAL_QUORUM"
    QUORUM = "QUORUM"
    EACH_QUORUM = "EACH_QUORUM"
    ALL = "ALL"


class CassandraSettings(Group):
    """Where the view is."""

    SAME_AS_JAMES = frozenset({"keyspace"})

    contact_points: Hosts = ("127.0.0.1",)
    """Cassandra nodes to connect to first: hosts, or host:port, with commas between. James:
    cassandra.properties `cassandra.nodes`"""
    port: int = Field(9042, ge=1, le=65535)
    """Port of Cassandra's native protocol, where a contact point names none. James:
    cassandra.properties `cassandra.nodes`"""
    keyspace: str = Field("apache_james", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,47}$")
    """James' keyspace, which holds the queue's view. James: cassandra.properties
    `cassandra.keyspace`"""
    datacenter: str | None = None
    """Local data centre of the driver. Unset: that of the first contact point. James:
    cassandra.properties `cassandra.local.dc`"""
    username: str | None = None
    """User of Cassandra. Unset: no login. James: cassandra.properties `cassandra.user`"""
    password: SecretStr | None = None
    """Password of that user. James: cassandra.properties `cassandra.password`"""
    consistency: Annotated[Consistency, setting_types.UPPER_CASE] = Consistency.LOCAL_QUORUM
    """Consistency of inserts, of deleted marks and of reads that decide. Use QUORUM when several
    data centres write. James: cassandra-driver.conf `basic.request.consistency`"""
    tls_enabled: bool = False
    """Whether connections to Cassandra use TLS. James: cassandra-driver.conf
    `advanced.ssl-engine-factory`"""
    tls_ca: Path | None = None
    """PEM file with the certificate authorities that verify Cassandra's certificate. Unset: the
    system's."""
    tls_certificate: Path | None = None
    """PEM file with the certificate that mailslice shows to Cassandra."""
    tls_key: Path | None = None
    """PEM file with the private key of that certificate."""
    tls_verify_host: bool = True
    """Whether the name in Cassandra's certificate must be that of the node. James:
    cassandra-driver.conf `advanced.ssl-engine-factory.hostname-validation`"""
    timeout: Time = timedelta(seconds=10)
    """How long mailslice waits for the answer to one request. James: cassandra-driver.conf
    `basic.request.timeout`"""


class OwnSettings(Group):
    """mailslice's own keyspace and bucket."""

    SAME_EVERYWHERE = frozenset({"keyspace", "bucket"})

    keyspace: str = Field("mailslice", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,47}$")
    """mailslice's own keyspace: ledger of runs, locks, delays, worker records. Each deployment
    needs a keyspace of its own."""
    replication: str = ""
    """Replication of that keyspace when mailslice creates it, as a CQL map. Unset: that of James'
    keyspace."""
    bucket: str = Field("mailslice", min_length=3, max_length=63, pattern=_BUCKET)
    """mailslice's own bucket: quarantine and kept content. Each deployment needs a bucket of its
    own."""
    url: SecretStr | None = None
    """Database for ledger, locks, decisions and quarantine where there is no Cassandra:
    mysql://user:password@host:port/database. Unset: database `mailslice` on the server of
    MAILSLICE_POSTAL_URL, with its user."""

    _parsed = field_validator("url")(_mariadb_url)


class RabbitSettings(Group):
    """The broker."""

    username: str | None = None
    """User of RabbitMQ for both URLs, in any characters and without escapes. Set it together with
    PASSWORD, and leave the user out of the URLs. James: rabbitmq.properties `management.user`"""
    password: SecretStr | None = None
    """Password of that user, in any characters. James: rabbitmq.properties `management.password`"""
    url: SecretStr = Field(
        SecretStr("amqp://guest:guest@127.0.0.1:5672/%2F"), validate_default=True
    )
    """Broker: amqp:// or amqps://user:password@host:port/vhost. James: rabbitmq.properties `uri`"""
    management_url: SecretStr = Field(
        SecretStr("http://guest:guest@127.0.0.1:15672"), validate_default=True
    )
    """RabbitMQ's management API: http:// or https://user:password@host:port. Without a user: that
    of URL. James: rabbitmq.properties `management.uri`"""
    tls_ca: Path | None = None
    """PEM file with the certificate authorities that verify RabbitMQ's certificate. Unset: the
    system's."""
    tls_certificate: Path | None = None
    """PEM file with the certificate that mailslice shows to RabbitMQ."""
    tls_key: Path | None = None
    """PEM file with the private key of that certificate."""
    tls_verify_host: bool = True
    """Whether the name in RabbitMQ's certificate must be that of the host. James:
    rabbitmq.properties `ssl.hostname.verifier`"""
    timeout: Time = timedelta(seconds=10)
    """How long mailslice waits for a connection, for a confirm, and while the broker blocks
    publishers."""

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
        login = f"{quote(username, safe='')}:{quote(password.get_secret_value(), safe='')}"
        scheme, separator, rest = value.get_secret_value().partition("://")
        user, _, place = rest.rpartition("@")
        if user not in ("", login) and value != default:
            raise ValueError(
                "it has a user, and MAILSLICE_RABBITMQ_USERNAME is set; allowed is one of them"
            )
        return SecretStr(f"{scheme}{separator}{login}@{place}")


class BlobStrategy(StrEnum):
    """James' two ways to name blobs."""

    PASSTHROUGH = "passthrough"
    DEDUPLICATION = "deduplication"


class BlobIdKind(StrEnum):
    """Ids with or without FAMILY_GENERATION_ before them."""

    PLAIN = "plain"
    GENERATION_AWARE = "generation-aware"


class HashEncoding(StrEnum):
    """How a deduplicated blob's hash is spelled: James' `james.blob.id.hash.encoding`."""

    BASE64 = "base64"
    BASE64URL = "base64url"
    HEX = "hex"


class BlobSettings(Group):
    """How blob ids are made."""

    SAME_AS_JAMES = frozenset({"strategy", "id", "hash_encoding", "generation_duration", "family"})

    strategy: BlobStrategy = BlobStrategy.PASSTHROUGH
    """How blobs are named. passthrough: a random UUID, deleted with its mail. deduplication: the
    SHA-256 of the content, deleted by blob_gc alone; mailslice refuses it beside a James of
    passthrough. James: blob.properties `deduplication.enable`"""
    id: BlobIdKind = BlobIdKind.PLAIN
    """Form of a blob id. generation-aware: FAMILY_GENERATION_ stands before it, as James writes it
    with deduplication. James: blob.properties `deduplication.enable`"""
    hash_encoding: HashEncoding = HashEncoding.BASE64
    """Spelling of the hash in ids of deduplication. James: jvm.properties
    `james.blob.id.hash.encoding`"""
    generation_duration: Time = timedelta(days=30)
    """Duration of one generation of ids. James: blob.properties
    `deduplication.gc.generation.duration`"""
    family: int = Field(1, ge=0)
    """Number that James raises when the duration of generations changes. James: blob.properties
    `deduplication.gc.generation.family`"""


class BlobProvider(StrEnum):
    """Who runs the content store."""

    S3 = "s3"
    AZURE = "azure"
    GCS = "gcs"


class S3Settings(Group):
    """The content store."""

    SAME_AS_JAMES = frozenset({"bucket"})
    SAME_EVERYWHERE = frozenset({"provider"})

    provider: BlobProvider = BlobProvider.S3
    """Provider of the content store. azure: ENDPOINT is https://ACCOUNT.blob.core.windows.net,
    ACCESS_KEY the account, SECRET_KEY its key. gcs: SECRET_KEY is the JSON of a service account.
    Without keys mailslice uses the machine's own identity. James knows s3 alone, and mailslice
    creates a missing bucket there alone. James: blob.properties `implementation`"""
    endpoint: str = "http://127.0.0.1:9000"
    """URL of the S3 API. A user and password in it are the two keys. James: blob.properties
    `objectstorage.s3.endPoint`"""
    bucket: str = Field("james", min_length=3, max_length=63, pattern=_BUCKET)
    """James' bucket with the content of mails. Where James names none, it is `default` behind
    James' `objectstorage.bucketPrefix`. James: blob.properties `objectstorage.namespace`"""
    access_key: str | None = None
    """Access key id of S3. James: blob.properties `objectstorage.s3.accessKeyId`"""
    secret_key: SecretStr | None = Field(None, validate_default=True)
    """Secret access key of S3. James: blob.properties `objectstorage.s3.secretKey`"""
    region: str = "us-east-1"
    """Region of the bucket, which signs requests. James: blob.properties `objectstorage.s3.region`
    """
    ca: Path | None = None
    """PEM file with the certificate authorities that verify the content store's certificate. Unset:
    the system's. James: blob.properties `objectstorage.s3.truststore.path`"""
    timeout: Time = timedelta(seconds=10)
    """How long mailslice waits for the answer to one request of a small object."""

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
    def _http_url(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            _ = parts.port, (parts.hostname or "").encode("idna")
        except ValueError:
            parts = urlsplit("")
        plain = parts.hostname and not parts.query and not parts.fragment
        if parts.scheme not in ("http", "https") or not plain:
            raise ValueError("allowed: http:// or https://host:port")
        return value

    @field_validator("secret_key")
    @classmethod
    def _with_access_key(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        is_s3 = info.data.get("provider") is BlobProvider.S3
        if is_s3 and (value is None) is not (info.data.get("access_key") is None):
            raise ValueError("MAILSLICE_S3_ACCESS_KEY and _SECRET_KEY: allowed is both or none")
        return value


class JamesVersion(StrEnum):
    """The James whose queue declarations are used for queues that are missing."""

    V3_8 = "3.8"
    """3.8 and before."""
    V3_9 = "3.9"
    """3.9 and later: classic queues of version 2; dead letter queues of the work queue's type."""


class QueueSettings(Group):
    """The queue's shape, as James is configured; a stored one wins (see `config check`)."""

    SAME_AS_JAMES = frozenset(
        {
            *("slice_window", "bucket_count", "browse_start_pace"),
            *("quorum", "quorum_group_size", "delivery_limit"),
        }
    )
    SAME_EVERYWHERE = frozenset({"table", "shared", "stage_marks"})

    table: Annotated[QueueTable, setting_types.LOWER_CASE] = QueueTable.V4
    """Version of the view's table: v4 since James 3.7, v3 before."""
    slice_window: Duration = timedelta(hours=1)
    """Width of a slice. James: rabbitmq.properties `mailqueue.view.sliceWindow`"""
    bucket_count: int = Field(1, ge=1, le=2**31 - 1)
    """Number of buckets into which each slice is divided. James: rabbitmq.properties
    `mailqueue.view.bucketCount`"""
    browse_start_pace: int = Field(1000, ge=1, le=2**31 - 1)
    """James moves browseStart at one in this many deletes. James: rabbitmq.properties
    `mailqueue.view.updateBrowseStartPace`"""
    james: JamesVersion = JamesVersion.V3_8
    """Whose declarations mailslice makes for queues that are missing: 3.8 (and before) or 3.9 (and
    later). RabbitMQ refuses a James that declares an existing queue otherwise."""
    quorum: bool = False
    """Whether mailslice declares new work queues as quorum queues. James: rabbitmq.properties
    `quorum.queues.enable`"""
    quorum_group_size: int = Field(1, ge=1, le=2**31 - 1)
    """Replicas of a new quorum queue: x-quorum-initial-group-size. James: rabbitmq.properties
    `quorum.queues.replication.factor`"""
    delivery_limit: int | None = Field(None, ge=1, le=2**31 - 1)
    """Deliveries of one message before a new quorum queue drops or dead-letters it:
    x-delivery-limit. 1000000000 is as good as none. Unset: the argument is not declared, which is
    20 in RabbitMQ 4 and no limit before. James: rabbitmq.properties
    `quorum.queues.delivery.limit`"""
    shared: bool = True
    """Whether James works on these queues, too. Then deleted marks go only when the broker was seen
    drained. mailslice keeps the answer in its own keyspace; unset, a process follows it
    (`mailslice config shared`)."""
    max_mail_bytes: int = Field(150 * 1024 * 1024, ge=1, le=_LARGEST_OBJECT)
    """Largest mail that mailslice accepts, in bytes. S3 takes 5 GiB in one request. James:
    smtpserver.xml `maxmessagesize` (KiB there)"""
    stage_marks: Words = ()
    """Queues whose workers write stage marks, with commas between. A mail whose worker died while
    it was sending then fails instead of being sent twice."""

    @field_validator("slice_window")
    @classmethod
    def _whole(cls, value: timedelta) -> timedelta:
        ViewConfiguration(slice_window=value)
        return value

    @property
    def configuration(self) -> ViewConfiguration:
        return ViewConfiguration(self.slice_window, self.bucket_count, self.browse_start_pace)


class StuckMode(StrEnum):
    """What stuck_mails does with a mail whose holder hangs."""

    SHADOW = "shadow"
    """Write down what would be done."""
    CLOSE = "close"
    """Quarantine and deleted mark: it is never sent twice, and a person decides."""
    RECOVER = "recover"
    """By its stage marks: give it to another, fail it, or complete it."""


class PostalMode(StrEnum):
    """What stuck_mails_postal does with a message whose worker died or hangs."""

    SHADOW = "shadow"
    """Write down what close, or retry, would do."""
    CLOSE = "close"
    """Quarantine, and Postal's own Held: it is never sent twice, and a person decides."""
    RETRY = "retry"
    """Back to Postal's queue where nothing can have been sent; else as close."""


class PostalSettings(Group):
    """A Postal: its MariaDB, and how its stuck messages are recovered."""

    url: SecretStr | None = None
    """Postal's main database: mysql:// or mariadb://user:password@host:port/database,
    percent-encoded."""
    message_prefix: str = Field("postal", min_length=1, max_length=40)
    """How the names of the message databases begin, PREFIX-server-ID: Postal's setting
    `message_db.database_name_prefix`."""
    message_url: SecretStr | None = None
    """MariaDB server of the message databases, in the same form; a database in it is ignored.
    Unset: that of URL."""
    lock_timeout: Time | None = None
    """How long a message may be locked before it counts as stuck. Unset: 10 times the p99 of what
    sending took, and at least 10 minutes."""
    mode: Annotated[PostalMode, setting_types.LOWER_CASE] = PostalMode.SHADOW
    """What runs of stuck_mails_postal do that name no mode."""
    timeout: Time = timedelta(seconds=10)
    """How long mailslice waits for a connection to MariaDB and for the answer to one statement."""
    tls_enabled: bool = False
    """Whether connections to MariaDB use TLS, MAILSLICE_OWN_URL's, too."""
    tls_ca: Path | None = None
    """PEM file with the certificate authorities that verify MariaDB's certificate. Unset: the
    system's."""
    tls_certificate: Path | None = None
    """PEM file with the certificate that mailslice shows to MariaDB."""
    tls_key: Path | None = None
    """PEM file with the private key of that certificate."""
    tls_verify_host: bool = True
    """Whether the name in MariaDB's certificate must be that of the host."""

    _parsed = field_validator("url", "message_url")(_mariadb_url)


class DutySettings(Group):
    """Where duties keep what they write, and for how long."""

    SAME_EVERYWHERE = frozenset({"artifacts"})

    artifacts: str = ""
    """Where duties keep plans, reports and Data Docs: a folder, or s3a://BUCKET/PREFIX. Several
    machines need the same one. Unset: `.state/artifacts` of the clone, else
    `~/.local/state/mailslice/artifacts`."""
    retention: Annotated[Time, setting_types.at_most(_MAX_RETENTION)] = timedelta(days=90)
    """How long ledger rows and artifacts are kept, at most 3650d. Claims, which keep a mail or a
    counter from being done twice, are kept for 7d at least."""
    grace: Duration = timedelta(minutes=15)
    """How long after its end a slice still counts as open."""
    rate_cassandra: int = Field(0, ge=0)
    """Writes a second that one run may ask of Cassandra. 0: no limit."""
    rate_s3: int = Field(0, ge=0)
    """Keys a second that one run may delete or copy in S3. 0: no limit."""
    rate_rabbitmq: int = Field(0, ge=0)
    """Messages a second that one run may publish or consume. 0: no limit."""
    small_rows: int = Field(50_000, ge=0)
    """Rows up to which a plan and the steps after it run in one process without Spark
    (queue_cleanup, queue_size). 0: always Spark."""
    spark_master: str = "local[*]"
    """Spark master of duties that run without Airflow."""
    spark_driver_memory: str = Field("1g", pattern=r"^\d+[kmgKMG]$")
    """Heap of the driver that `duty run` starts: a number with k, m or g. On a cluster it holds
    only where you set it."""
    spark_driver_options: str = ""
    """More options of the JVM of Spark's driver, without Airflow. -XX:TieredStopAtLevel=1 takes a
    quarter of the CPU off a short run."""
    spark_conf: SparkConf = ()
    """Options of Spark for every duty, with and without Airflow: a JSON object, or `spark.a=b` with
    commas between. They win over those that mailslice sets. docs/scale.md lists the options of
    each kind of cluster."""
    nodetool: str = ""
    """Command that runs Cassandra's nodetool on one node, for reclaim. {host} stands for the node's
    address: `ssh {host} nodetool`. A password of JMX belongs in a file: `-pwf FILE`."""
    usual_factor: float = Field(10.0, ge=1)
    """A plan of more than this many times the work of the last runs fails the gate."""
    max_counters_share: float = Field(0.2, ge=0, le=1)
    """Share of all mailboxes whose counters one run may change, and of all rows of messageIdTable
    that it may delete, 0 to 1, unless the run says another."""
    stuck_mode: StuckMode = StuckMode.CLOSE
    """What stuck_mails does with a mail whose holder hangs, unless the run says another. recover
    needs MAILSLICE_QUEUE_STAGE_MARKS."""
    stuck_factor: float = Field(10.0, ge=1, le=1000)
    """A mail is stuck when a worker holds it for longer than this many times the queue's 99th
    percentile."""
    stuck_at_least: Time = timedelta(minutes=10)
    """A mail that a worker holds for less than this is never stuck."""
    stuck_alert_from: int = Field(10, ge=1)
    """Decisions of one run of stuck_mails or stuck_mails_postal from which its report raises an
    alert."""
    notify: str = "log"
    """Notifiers of failed runs and alerts, with commas between: log, email, webhook."""
    notify_email: Words = ()
    """Recipients of the email notifier, with commas between. Airflow's connection smtp_default
    sends the mail."""
    notify_webhook: SecretStr | None = None
    """URL of http or https to which the webhook notifier POSTs one JSON object."""

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
    def _http_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("allowed: a URL of http or https")
        return value

    @property
    def claim_ttl(self) -> timedelta:
        """How long a claim is kept: it must outlive the last try of its plan."""
        return max(self.retention, _MIN_CLAIM_TTL)


class GcSettings(Group):
    """What blob_gc counts as references, beside the sources that it always reads."""

    absent_sources: Words = ()
    """Sources of references whose table is known to be missing, with commas between:
    enqueuedMailsV3, messageV3, attachmentV2..."""
    sources: str = ""
    """More columns that hold blob ids: table:column,column;keyspace.table:column. Columns are texts
    or collections of texts. Without a keyspace: James'."""
    volatile_sources: Words = ()
    """Sources that may become empty from run to run, with commas between, such as enqueuedMailsV4
    where James cleans it. No gate holds them."""
    unread_columns: Words = ()
    """Columns that are named like blob ids and hold none, or those of other buckets: table.column
    with commas between. Any other column that no source reads fails the gate."""
    max_share: float = Field(0.1, ge=0, le=1)
    """Share of all blobs that one run may delete, 0 to 1, unless the run says another."""


class AdminSettings(Group):
    """What people do by the command line and the page."""

    reason_required: bool = False
    """Whether each command that changes something needs --reason; duties do not."""
    undo_for: Annotated[Duration, setting_types.at_most(_LONGEST_UNDO)] = timedelta(days=7)
    """How long mails that people delete are kept in mailslice's own bucket, so that `queue
    undelete` brings them back; at most 365d. 0s: not at all."""


class WebadminSettings(Group):
    """James' webadmin routes without Airflow: `mailslice webadmin`."""

    token: SecretStr | None = None
    """What clients send as `Authorization: Bearer TOKEN`; required."""


class AlertSettings(Group):
    """Limits above which MAILSLICE_DUTY_NOTIFY notifies people. Reports list these alerts, too."""

    browse_lag: Duration = timedelta(days=3)
    """Alert when browseStart is older than this. 0s: never."""
    content_lag: Duration = timedelta(days=7)
    """Alert when contentStart is older than this. 0s: never."""
    oldest_mail: Duration = timedelta(days=1)
    """Alert when the oldest live mail is older than this. 0s: never."""
    dead_letters: int = Field(10, ge=0)
    """Alert when a dead letter queue holds more messages than this."""
    consumers: int = Field(1, ge=0)
    """Alert when a work queue has fewer consumers than this. 0: never."""
    lost: int = Field(0, ge=0)
    """Alert when an audit finds more lost mails than this, or stuck_mails_postal lost messages."""
    bare: int = Field(0, ge=0)
    """Alert when an audit finds more mails without content than this."""
    zombies: int = Field(0, ge=0)
    """Alert when one run of stuck_mails or stuck_mails_postal found more mails than this."""
    repeat: Duration = timedelta(hours=20)
    """An alert that persists is repeated after this long. A daily run repeats it daily."""


class AirflowSettings(Group):
    """What Airflow's processes read: DAG processor, scheduler, workers and pages."""

    connection: str = ""
    """Airflow connections that hold settings: ID, or eu_=ID,us_=ID for several deployments. The
    prefix stands before the ids of a deployment's DAGs. Outside of Airflow, `mailslice airflow run`
    reads them for a command."""
    config: str = ""
    """YAML file with schedules, Spark connection, pool, tags and approvals of the DAGs."""


class LogFormat(StrEnum):
    """How a process of the worker writes its log on standard error."""

    TEXT = "text"
    JSON = "json"


class LogSettings(Group):
    """What `worker run` and `worker smtp-in` write on standard error (docs/monitoring.md)."""

    format: LogFormat = LogFormat.TEXT
    """Form of the log. text: messages for people. json: every line is one JSON object."""
    events: bool = True
    """Whether each event of a mail is a line of JSON: accepted, attempt, delivered, deferred,
    bounced, dead_letter."""
    addresses: bool = False
    """Whether these events name sender and recipients. Otherwise they count the recipients."""
    files: Words = ()
    """Files that these logs are kept in, with commas between; `*` is any text. The page and `mail
    trace` read a mail's events there, in the newest 64 MiB."""


class SmtpInSettings(Group):
    """`mailslice worker smtp-in`."""

    host: Host = "127.0.0.1"
    """Address that smtp-in listens on."""
    port: int = Field(2525, ge=0, le=65535)
    """Port that smtp-in listens on. 0: any free port."""
    allowed_networks: Words = ("127.0.0.0/8", "::1/128")
    """Networks whose clients may send without AUTH, with commas between."""
    username: str | None = None
    """User of AUTH. With a password, clients outside the allowed networks may send after AUTH."""
    password: SecretStr | None = None
    """Password of that user."""
    tls_certificate: Path | None = None
    """PEM file with the server's certificate. With the key, STARTTLS is offered and AUTH needs it.
    """
    tls_key: Path | None = None
    """PEM file with the private key of that certificate."""
    hostname: str | None = None
    """Name in the greeting and in Received fields. Unset: the machine's."""
    max_recipients: int = Field(10_000, ge=1)
    """Recipients that one mail may have."""
    auth_without_tls: bool = False
    """Whether passwords may come in the clear where HOST is not loopback. Set it only behind a port
    that is published on loopback."""
    max_connections: int = Field(100, ge=1, le=2**31 - 1)
    """Connections at once: this many from outside the allowed networks, and as many from within."""
    connections_per_client: int = Field(10, ge=1)
    """Connections at once from one address outside the allowed networks; of IPv6 from one /64."""
    timeout: Time = timedelta(minutes=5)
    """How long smtp-in waits for a command, and for each 64 KiB of a mail. A whole mail has 10
    minutes and a second for each 100 KB."""
    refuse_bare_line_ends: bool = True
    """Whether smtp-in refuses (550) a mail with a bare CR or LF from clients outside the allowed
    networks. Other servers may read such a mail as two."""
    health_port: int = Field(0, ge=0, le=65535)
    """Port of /livez, /readyz and /metrics of smtp-in. 0: off."""


class GiveUp(StrEnum):
    """What becomes of a mail that the next hop will never take."""

    DEAD_LETTER = "dead-letter"
    BOUNCE = "bounce"


class StartTls(StrEnum):
    """Whether connections to the next hop use TLS (RFC 3207)."""

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

    SAME_EVERYWHERE = frozenset({"rates", "connections"})

    host: Host = "127.0.0.1"
    """Next hop: the SMTP server to which the relay handler sends."""
    port: int = Field(25, ge=1, le=65535)
    """Port of the next hop."""
    timeout: Time = timedelta(seconds=60)
    """How long the relay waits for a connection, for the answer to a command, and for each 64 KiB
    of a mail."""
    answer_timeout: Time = timedelta(minutes=8)
    """How long the relay waits for the answer to a whole mail, at least MAILSLICE_RELAY_TIMEOUT. A
    time-out below the server's own answer time causes duplicate deliveries; RFC 5321 4.5.3.2.6
    names 10m. With 10m, raise MAILSLICE_DUTY_STUCK_AT_LEAST as well. This time and the 15
    minutes of sending must fit into RabbitMQ's consumer_timeout (30m)."""
    starttls: Annotated[StartTls, BeforeValidator(_start_tls)] = StartTls.NONE
    """TLS with the next hop (RFC 3207). none: no TLS. may: when it is offered, any certificate.
    must: nothing is sent without TLS, any certificate. verified: must, and the certificate is
    the host's. true means verified, false none."""
    implicit_tls: bool = False
    """Whether TLS begins with the first byte, as on port 465. The certificate is verified unless
    MAILSLICE_RELAY_STARTTLS=must."""
    tls_ca: Path | None = None
    """PEM file with the certificate authorities that verify the next hop. Unset: the system's."""
    tls_certificate: Path | None = None
    """PEM file with the certificate that mailslice shows to a next hop that asks for one."""
    tls_key: Path | None = None
    """PEM file with the private key of that certificate."""
    username: str | None = None
    """User of AUTH (PLAIN, LOGIN) at the next hop. Set it together with PASSWORD."""
    password: SecretStr | None = None
    """Password of that user."""
    auth_without_tls: bool = False
    """Whether the password may cross a network in the clear."""
    mails_per_connection: int = Field(100, ge=1)
    """Mails that one connection carries; it is closed after 30 s without a mail. 1: a connection
    for each mail."""
    max_age: Duration = timedelta(days=5)
    """Age from which a mail that the next hop still refuses is given up."""
    give_up: GiveUp = GiveUp.DEAD_LETTER
    """What becomes of a mail that is refused permanently or too old. bounce needs
    MAILSLICE_WORKER_BOUNCE_QUEUE."""
    rates: LimitRules = ()
    """Mails a minute for a recipient domain, by all workers of a queue together:
    example.com=60,*.example.com=600,*=1200. The closest pattern holds, for each domain by
    itself. 0: no limit."""
    connections: LimitRules = ()
    """Connections at once that carry mail for a recipient domain, in the same form."""

    @property
    def limits(self) -> Limits:
        return Limits(self.rates, self.connections)


class WorkerSettings(Group):
    """The consumer process."""

    health_host: str = "127.0.0.1"
    """Address of /livez, /readyz and /metrics, of smtp-in, too."""
    health_port: int = Field(0, ge=0, le=65535)
    """Port of /livez, /readyz and /metrics of a worker. 0: off."""
    memory_budget_mib: int = Field(96, ge=8)
    """Content that a process holds in memory at once, in MiB."""
    record_every: Duration = Field(timedelta(seconds=3), le=timedelta(minutes=1))
    """Time between two records of the mails that a process holds, at most 1m; stuck_mails reads
    them. Above 10s a census may hold the work queue for three times as long. 0s: no record;
    moves, delays and undeletes may double what such a worker has."""
    maildir: Path | None = None
    """Folder of the Maildir handler."""
    bounce_queue: str | None = None
    """Mail queue into which reports to senders (RFC 3464) are enqueued, for recipients that fail.
    Unset: no reports."""
    back_off_base: Duration = Field(
        timedelta(seconds=30), ge=timedelta(seconds=1), le=timedelta(days=27)
    )
    """Pause after the first failed attempt at a mail, 1s to 27d."""
    back_off_factor: float = Field(2.0, ge=1, le=100)
    """Factor by which each further pause is longer, 1 to 100."""
    back_off_cap: Duration = Field(
        timedelta(hours=1), ge=timedelta(seconds=1), le=timedelta(days=27)
    )
    """Longest of these pauses, 1s to 27d; a tenth of it is added or subtracted at random."""
    attempts: int = Field(150, ge=0)
    """Failed attempts after which a mail is given up. 150 attempts of the default pauses take six
    days. 0: never."""
    give_up: GiveUp = GiveUp.DEAD_LETTER
    """What becomes of such a mail. bounce needs MAILSLICE_WORKER_BOUNCE_QUEUE."""
