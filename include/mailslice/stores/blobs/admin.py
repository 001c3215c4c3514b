"""The blob store for administration: synchronous, by boto3, which can express every key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache, cached_property, partial
from threading import Lock
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from mailslice.model.batches import batches
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import ContentMissing, MailsliceError, SlowDown, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.keys import is_impossible, needs_boto3, s3_location, wrong_key

_PIECE = 1024 * 1024
_KEYS_A_DELETE = 1000
"""The most keys that one DeleteObjects request may hold."""
KEYS_A_PAGE = 1000
_REFUSED = frozenset(
    """
    InvalidAccessKeyId SignatureDoesNotMatch AccessDenied Forbidden 403
    AuthorizationHeaderMalformed
    """.split()
)
_BUCKET_EXISTS = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})
_NO_BUCKET = frozenset({"404", "NoSuchBucket", "NotFound"})
NO_KEY = frozenset({"NoSuchKey", "404", "NotFound"})
_INVALID_KEY = frozenset(
    """
    400 BadRequest InvalidRequest InvalidURI KeyTooLongError XMinioInvalidObjectName
    """.split()
)
"""Answers of servers that keep files about a key that they can never hold ("/a")."""
BUSY = frozenset(
    """
    SlowDown 503 ServiceUnavailable Throttling ThrottlingException RequestLimitExceeded
    TooManyRequests 429
    """.split()
)
"""S3 is asked too fast: ask again later, and slower."""
_CREATING = Lock()
T = TypeVar("T")


@cache
def _session() -> Any:
    """One for all clients, made one at a time: each would read S3's model (megabytes) anew."""
    return boto3.session.Session()


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One object of a listing; `size` in bytes."""

    key: BlobId
    size: int
    modified: datetime

    @classmethod
    def of(cls, answer: Mapping[str, Any], key: str, size: str) -> StoredBlob:
        """From an answer of S3; `size` is its field of that name."""
        return cls(BlobId(key), int(answer[size]), answer["LastModified"])


class AdminBlobs:
    """One bucket, for many threads. Raises StoreUnavailable, or BadSetting for a refused key."""

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self.settings = settings
        self.bucket = bucket

    @cached_property
    def client(self) -> Any:
        """The boto3 client: addresses by path, one retry, checksums only where S3 asks for them."""
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
        head = partial(self.client.head_bucket, Bucket=self.bucket)
        return self._unless(_NO_BUCKET, head) is not None

    def now_skew(self, clock: Clock = system_clock) -> timedelta:
        """How far S3's clock is ahead of this machine's, to the second; zero when unknown."""
        answer = self._ask(partial(self.client.head_bucket, Bucket=self.bucket))
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return parsedate_to_datetime(date) - clock() if date else timedelta(0)

    def ensure_bucket(self) -> bool:
        """Creates the bucket when it is missing, as James does; True when it did."""
        if self.bucket_exists():
            return False
        options: dict[str, Any] = {"Bucket": self.bucket}
        if self.settings.region not in ("", "us-east-1"):
            where = {"LocationConstraint": self.settings.region}
            options["CreateBucketConfiguration"] = where
        create = partial(self.client.create_bucket, **options)
        return self._unless(_BUCKET_EXISTS, create) is not None

    def put(self, blob_id: BlobId, content: bytes) -> None:
        """Writes the object, over an older one of the same key."""
        with self._translated():
            self.client.put_object(Bucket=self.bucket, Key=blob_id, Body=content)

    def get(self, blob_id: BlobId) -> bytes:
        """The object's bytes.

        Raises ContentMissing when the bucket exists and the object does not.
        """
        return b"".join(self.pieces(blob_id))

    def pieces(self, blob_id: BlobId) -> Iterator[bytes]:
        """The object's bytes, a mebibyte at a time; asked for at the first one. Raises as `get`."""
        self._refuse_impossible(blob_id)
        with self._translated(blob_id):
            body = self.client.get_object(Bucket=self.bucket, Key=blob_id)["Body"]
            yield from body.iter_chunks(_PIECE)

    def exists(self, blob_id: BlobId) -> bool:
        """Whether the object exists. A miss is asked again by a listing: a bucket may be gone."""
        with self._translated():
            if not is_impossible(blob_id):
                try:
                    self.client.head_object(Bucket=self.bucket, Key=blob_id)
                except ClientError as error:
                    if _code(error) not in NO_KEY and not _cannot_exist(error, blob_id):
                        raise
                else:
                    return True
            return self._is_listed(blob_id)

    def _is_listed(self, blob_id: BlobId) -> bool:
        """Whether a listing has the key. Raises ClientError when the bucket is gone."""
        if not is_impossible(blob_id):
            try:
                listed = self.client.list_objects_v2(Bucket=self.bucket, Prefix=blob_id, MaxKeys=1)
            except ClientError as error:
                if not _cannot_exist(error, blob_id):
                    raise
            else:
                return any(entry["Key"] == blob_id for entry in listed.get("Contents", ()))
        self.client.head_bucket(Bucket=self.bucket)
        return False

    def list(self, prefix: str = "") -> Iterator[StoredBlob]:
        """All objects whose key begins with `prefix`, page by page, in the order of their keys."""
        for page, _ in self._listing({"Prefix": prefix}):
            yield from page

    def _listing(
        self, first: dict[str, str], most: int = KEYS_A_PAGE
    ) -> Iterator[tuple[Sequence[StoredBlob], bool]]:
        """Pages of a ListObjectsV2, each with whether another one follows."""
        request: dict[str, Any] = {"Bucket": self.bucket, "MaxKeys": most, **first}
        more = True
        while more:
            answer = self._ask(partial(self.client.list_objects_v2, **request))
            more = bool(answer.get("IsTruncated"))
            entries = answer.get("Contents", ())
            yield [StoredBlob.of(entry, entry["Key"], "Size") for entry in entries], more
            if more:
                request.pop("StartAfter", None)
                request["ContinuationToken"] = answer["NextContinuationToken"]

    def delete_many(self, blob_ids: Iterable[BlobId]) -> Sequence[BlobId]:
        """Deletes 1,000 keys a request; the keys that S3 could not delete.

        A missing one is deleted.
        """
        return list(self.delete(blob_ids))

    def delete(self, keys: Iterable[BlobId]) -> dict[BlobId, str]:
        """As `delete_many`: those that S3 could not delete, with its code."""
        failed: dict[BlobId, str] = {}
        for batch in batches(keys, _KEYS_A_DELETE):
            failed |= self._delete(batch)
        return failed

    def _delete(self, keys: Sequence[BlobId]) -> dict[BlobId, str]:
        request = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        ask = partial(self.client.delete_objects, Bucket=self.bucket, Delete=request)
        return {
            BlobId(error["Key"]): str(error.get("Code", ""))
            for error in self._ask(ask).get("Errors", ())
            if error.get("Code") not in NO_KEY
        }

    def _ask(self, ask: Callable[[], T]) -> T:
        """What `ask` gives; S3's errors as mailslice's."""
        with self._translated():
            return ask()

    def _unless(self, codes: Collection[str], ask: Callable[[], T]) -> T | None:
        """As `_ask`; None where S3 answers with one of these codes."""

        def known() -> T | None:
            try:
                return ask()
            except ClientError as error:
                if _code(error) not in codes:
                    raise
                return None

        return self._ask(known)

    def _refuse_impossible(self, blob_id: BlobId) -> None:
        if is_impossible(blob_id) and not self.exists(blob_id):
            raise self._missing(blob_id)

    def _missing(self, blob_id: BlobId) -> ContentMissing:
        return ContentMissing(
            f"S3 bucket {self.bucket!r} at {s3_location(self.settings)} has no object {blob_id!r}"
        )

    @contextmanager
    def _translated(self, blob_id: BlobId | None = None) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise self._meaning(error, blob_id) from error

    def _meaning(self, error: Exception, blob_id: BlobId | None) -> MailsliceError:
        location = s3_location(self.settings)
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return wrong_key(self.settings, str(error))
        if isinstance(error, ClientError):
            code = _code(error)
            if code in BUSY:
                return SlowDown(
                    f"S3 at {location}, bucket {self.bucket!r} is too busy: "
                    f"{' '.join(str(error).split())}"
                )
            if code in _REFUSED:
                return wrong_key(self.settings, f"{code}, bucket {self.bucket!r}")
            if blob_id is not None and (
                code == "NoSuchKey" or (_cannot_exist(error, blob_id) and not self.exists(blob_id))
            ):
                return self._missing(blob_id)
        return StoreUnavailable(
            f"S3 at {location}, bucket {self.bucket!r}: {' '.join(str(error).split())}"
        )


def _cannot_exist(error: ClientError, blob_id: BlobId) -> bool:
    return _code(error) in _INVALID_KEY and needs_boto3(blob_id)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
