"""The blob store as administrators use it: synchronous, by boto3, which can create buckets and express every key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache, cached_property
from threading import Lock
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import ContentMissing, MailsliceError, SlowDown, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.keys import crate_changes, is_impossible
from mailslice.stores.blobs.place import s3_place, wrong_key

_PIECE = 1024 * 1024
KEYS_A_DELETE = 1000
"""The most keys that one DeleteObjects request may hold."""
_REFUSED = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "AccessDenied",
        "Forbidden",
        "403",
        "AuthorizationHeaderMalformed",
    }
)
_THERE_ALREADY = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})
_NO_BUCKET = frozenset({"404", "NoSuchBucket", "NotFound"})
_NO_KEY = frozenset({"NoSuchKey", "404", "NotFound"})
_NO_SUCH_KEYS = frozenset(
    {
        "400",
        "BadRequest",
        "InvalidRequest",
        "InvalidURI",
        "KeyTooLongError",
        "XMinioInvalidObjectName",
    }
)
"""What servers that keep files say of a key that they can never hold, such as one that begins with a slash."""
BUSY = frozenset(
    {
        "SlowDown",
        "503",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "429",
    }
)
"""What S3 says when it is asked too fast: ask again later, and slower."""


_CREATING = Lock()


@cache
def _session() -> Any:
    """One for all clients: each of its own would read the megabytes of S3's model again. Makes one client at a time."""
    return boto3.session.Session()


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One object of a listing; `size` in bytes."""

    key: BlobId
    size: int
    modified: datetime


class AdminBlobs:
    """One bucket. Safe to share between threads. Raises StoreUnavailable naming the endpoint, or BadSetting when S3 refuses the key."""

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self.settings = settings
        self.bucket = bucket

    @cached_property
    def client(self) -> Any:
        """The boto3 client: addresses by path, one retry, and checksums only where S3 asks for them (many servers know no others)."""
        seconds = self.settings.timeout.total_seconds()
        config = Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=min(5.0, seconds),
            read_timeout=seconds,
            retries={"total_max_attempts": 2, "mode": "standard"},
            max_pool_connections=32,
        )
        secret = self.settings.secret_key
        with _CREATING:
            return _session().client(
                "s3",
                endpoint_url=self.settings.endpoint,
                region_name=self.settings.region,
                aws_access_key_id=self.settings.access_key,
                aws_secret_access_key=secret.get_secret_value() if secret else None,
                verify=str(self.settings.ca) if self.settings.ca else None,
                config=config,
            )

    def bucket_exists(self) -> bool:
        """Whether there is such a bucket."""
        with self._translated():
            try:
                self.client.head_bucket(Bucket=self.bucket)
            except ClientError as error:
                if _code(error) not in _NO_BUCKET:
                    raise
                return False
            return True

    def now_skew(self, clock: Clock = system_clock) -> timedelta:
        """How far S3's clock is ahead of this machine's, to the second; zero when S3 does not say."""
        with self._translated():
            answer = self.client.head_bucket(Bucket=self.bucket)
        said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return parsedate_to_datetime(said) - clock() if said else timedelta(0)

    def ensure_bucket(self) -> bool:
        """Creates the bucket when it is missing, as James does; True when it did."""
        if self.bucket_exists():
            return False
        with self._translated():
            region = self.settings.region
            where = (
                {}
                if region in ("", "us-east-1")
                else {"CreateBucketConfiguration": {"LocationConstraint": region}}
            )
            try:
                self.client.create_bucket(Bucket=self.bucket, **where)
            except ClientError as error:
                if _code(error) not in _THERE_ALREADY:
                    raise
                return False
            return True

    def put(self, blob_id: BlobId, content: bytes) -> None:
        """Writes the object, over an older one of the same key."""
        with self._translated():
            self.client.put_object(Bucket=self.bucket, Key=blob_id, Body=content)

    def get(self, blob_id: BlobId) -> bytes:
        """The object's bytes. Raises ContentMissing when the bucket is there and the object is not."""
        self._refuse_impossible(blob_id)
        with self._translated(blob_id):
            found: bytes = self.client.get_object(Bucket=self.bucket, Key=blob_id)["Body"].read()
            return found

    def pieces(self, blob_id: BlobId) -> Iterator[bytes]:
        """The object's bytes, a mebibyte at a time; asked for at the first one. Raises as `get`."""
        self._refuse_impossible(blob_id)
        with self._translated(blob_id):
            yield from self.client.get_object(Bucket=self.bucket, Key=blob_id)["Body"].iter_chunks(
                _PIECE
            )

    def exists(self, blob_id: BlobId) -> bool:
        """Whether the object is there. A HEAD has no words, so a miss is asked again by a listing, which fails when the bucket is gone."""
        with self._translated():
            if not is_impossible(blob_id):
                try:
                    self.client.head_object(Bucket=self.bucket, Key=blob_id)
                except ClientError as error:
                    if _code(error) not in _NO_KEY and not _never_there(error, blob_id):
                        raise
                else:
                    return True
            return self._is_listed(blob_id)

    def _is_listed(self, blob_id: BlobId) -> bool:
        """Whether a listing has the key. One that cannot be listed for what it is cannot be there either. Raises ClientError when the bucket is gone."""
        if not is_impossible(blob_id):
            try:
                listed = self.client.list_objects_v2(Bucket=self.bucket, Prefix=blob_id, MaxKeys=1)
            except ClientError as error:
                if not _never_there(error, blob_id):
                    raise
            else:
                return any(found["Key"] == blob_id for found in listed.get("Contents", ()))
        self.client.head_bucket(Bucket=self.bucket)
        return False

    def list(self, prefix: str = "") -> Iterator[StoredBlob]:
        """All objects whose key begins with `prefix`, page by page, in the order of their keys."""
        token: dict[str, str] = {}
        while True:
            with self._translated():
                page = self.client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **token)
            for found in page.get("Contents", ()):
                yield StoredBlob(BlobId(found["Key"]), int(found["Size"]), found["LastModified"])
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete_many(self, blob_ids: Iterable[BlobId]) -> Sequence[BlobId]:
        """Deletes up to 1,000 keys a request; a key that is not there counts as deleted. Returns those that S3 could not delete."""
        keys = [*blob_ids]
        failed: Sequence[BlobId] = []
        for at in range(0, len(keys), KEYS_A_DELETE):
            objects = [{"Key": key} for key in keys[at : at + KEYS_A_DELETE]]
            with self._translated():
                answer = self.client.delete_objects(
                    Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True}
                )
            failed = [
                *failed,
                *(
                    BlobId(error["Key"])
                    for error in answer.get("Errors", ())
                    if error.get("Code") not in _NO_KEY
                ),
            ]
        return failed

    def _refuse_impossible(self, blob_id: BlobId) -> None:
        if is_impossible(blob_id) and not self.exists(blob_id):
            raise self._missing(blob_id)

    def _missing(self, blob_id: BlobId) -> ContentMissing:
        return ContentMissing(
            f"S3 bucket {self.bucket!r} at {s3_place(self.settings)} has no object {blob_id!r}"
        )

    @contextmanager
    def _translated(self, blob_id: BlobId | None = None) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise self._meaning(error, blob_id) from error

    def _meaning(self, error: Exception, blob_id: BlobId | None) -> MailsliceError:
        place = s3_place(self.settings)
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return wrong_key(self.settings, str(error))
        if isinstance(error, ClientError):
            code = _code(error)
            if code in BUSY:
                return SlowDown(
                    f"S3 at {place}, bucket {self.bucket!r} is too busy: {' '.join(str(error).split())}"
                )
            if code in _REFUSED:
                return wrong_key(self.settings, f"{code}, bucket {self.bucket!r}")
            if blob_id is not None and (
                code == "NoSuchKey" or (_never_there(error, blob_id) and not self.exists(blob_id))
            ):
                return self._missing(blob_id)
        return StoreUnavailable(
            f"S3 at {place}, bucket {self.bucket!r}: {' '.join(str(error).split())}"
        )


def _never_there(error: ClientError, blob_id: BlobId) -> bool:
    return _code(error) in _NO_SUCH_KEYS and crate_changes(blob_id)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
