"""The double of a live James, without code of mailslice: it uses only raw drivers and the golden
files.

It writes what James writes (row, message, blobs) and reads what James reads, so that tests check
both directions from outside.
"""

import base64
import json
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pika
from botocore.config import Config
from cassandra.cluster import Cluster

GOLDEN = Path(__file__).parents[1] / "golden"


class James:
    """One queue of one James. `env`: the MAILSLICE_* variables of the stores."""

    def __init__(self, env: dict[str, str], queue: str) -> None:
        self.env, self.queue = env, queue
        hosts = env["MAILSLICE_CASSANDRA_CONTACT_POINTS"].split(",")
        port = int(env["MAILSLICE_CASSANDRA_PORT"])
        # Cassandra is slow during the first tests of a run.
        self.cluster = Cluster(hosts, port=port, connect_timeout=30, control_connection_timeout=30)
        self.cql = self.cluster.connect()
        self.cql.default_timeout = 60
        self.cql.set_keyspace(env["MAILSLICE_CASSANDRA_KEYSPACE"])
        self.amqp = pika.BlockingConnection(pika.URLParameters(env["MAILSLICE_RABBITMQ_URL"]))
        self.channel = self.amqp.channel()
        self.channel.confirm_delivery()
        self.s3 = boto3.client(
            "s3",
            endpoint_url=env["MAILSLICE_S3_ENDPOINT"],
            aws_access_key_id=env["MAILSLICE_S3_ACCESS_KEY"],
            aws_secret_access_key=env["MAILSLICE_S3_SECRET_KEY"],
            region_name=env.get("MAILSLICE_S3_REGION", "us-east-1"),
            config=Config(
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        self.bucket = env["MAILSLICE_S3_BUCKET"]
        self.exchange = f"JamesMailQueue-exchange-{queue}"
        self.work_queue = f"JamesMailQueue-workqueue-{queue}"
        self.dead_letters = f"JamesMailQueue-dead-letter-queue-{queue}"

    def __enter__(self) -> "James":
        return self

    def __exit__(self, *_: object) -> None:
        self.amqp.close()
        self.cluster.shutdown()

    def golden(self, case: str) -> dict:
        return json.loads((GOLDEN / f"{case}.json").read_text())

    def write(
        self,
        case: str,
        *,
        window: int,
        at_ms: int,
        enqueue_id: str | None = None,
        name: str | None = None,
    ) -> str:
        """Enqueues golden mail `case` as James does, at `at_ms`; returns its enqueue id."""
        golden = self.golden(case)
        enqueue_id = enqueue_id or str(uuid.uuid4())
        for part in ("header", "body"):
            blob = golden["s3"][part]
            self.s3.put_object(
                Bucket=self.bucket, Key=blob["key"], Body=base64.b64decode(blob["base64"])
            )
        row = {
            column: self._value(cell["type"], cell["value"])
            for column, cell in golden["cassandra"]["row"].items()
        }
        slice_ms = at_ms // (window * 1000) * window * 1000
        row |= {
            "queuename": self.queue,
            "timerangestart": slice_ms,
            "enqueueid": uuid.UUID(enqueue_id),
            "enqueuedtime": at_ms,
        }
        body = json.loads(base64.b64decode(golden["amqp"]["body_base64"]))
        text = (
            base64.b64decode(golden["amqp"]["body_base64"])
            .decode()
            .replace(body["enqueueId"], enqueue_id)
        )
        if name:
            row["name"] = name
            text = text.replace(f'"name":"{body["name"]}"', f'"name":"{name}"')
        table = golden["cassandra"]["table"]
        for start, column in (("browseStart", "browseStart"), ("contentStart", "contentStart")):
            if table == "enqueuedMailsV3" and start == "contentStart":
                continue
            self.cql.execute(
                f"INSERT INTO {start} (queueName, {column}) VALUES (%s, %s) IF NOT EXISTS",
                (self.queue, slice_ms),
            )
        columns = list(row)
        insert = self.cql.prepare(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        )
        self.cql.execute(insert, [row[column] for column in columns])
        headers = golden["amqp"]["properties"].get("headers")
        self.publish(text.encode(), headers)
        return enqueue_id

    def publish(self, body: bytes, headers: dict | None = None) -> None:
        """Publishes a message to the mail exchange with James' properties."""
        properties = pika.BasicProperties(
            content_type="text/plain", delivery_mode=2, priority=0, headers=headers
        )
        self.channel.basic_publish(self.exchange, "", body, properties, mandatory=True)

    def mark(self, enqueue_id: str) -> None:
        """Writes a deleted mark as James does."""
        self.cql.execute(
            "INSERT INTO deletedMailsV2 (queueName, enqueueId) VALUES (%s, %s)",
            (self.queue, uuid.UUID(enqueue_id)),
        )

    def rows(self, table: str = "enqueuedMailsV4") -> list:
        return [
            row for row in self.cql.execute(f"SELECT * FROM {table}") if row.queuename == self.queue
        ]

    def marks(self) -> set[str]:
        return {
            str(row.enqueueid)
            for row in self.cql.execute("SELECT * FROM deletedMailsV2")
            if row.queuename == self.queue
        }

    def start(self, which: str) -> int | None:
        """browseStart or contentStart in ms since the epoch."""
        row = self.cql.execute(
            f"SELECT toUnixTimestamp({which}) FROM {which} WHERE queueName = %s", (self.queue,)
        ).one()
        return row[0] if row else None

    def take(self, queue: str | None = None) -> tuple[pika.BasicProperties, bytes] | None:
        """Takes the next message and acknowledges it; None without a message."""
        method, properties, body = self.channel.basic_get(queue or self.work_queue, auto_ack=True)
        return (properties, body) if method else None

    def ready(self, queue: str | None = None) -> int:
        return self.channel.queue_declare(
            queue or self.work_queue, passive=True
        ).method.message_count

    def keys(self) -> set[str]:
        return {
            item["Key"]
            for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
            for item in page.get("Contents", [])
        }

    @staticmethod
    def _value(cql_type: str, value: object) -> object:
        if value is None:
            return None
        if cql_type == "uuid":
            return uuid.UUID(value)
        if cql_type.endswith("blob>") and isinstance(value, dict):
            return {name: bytes.fromhex(cell) for name, cell in value.items()}
        if cql_type.startswith("list<frozen<tuple"):
            return [tuple(item) for item in value]
        return value


def host_of(url: str) -> str:
    """host:port of a URL."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}"
