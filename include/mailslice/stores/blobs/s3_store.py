"""A bucket of S3 by boto3, which can express every key. HEADs and copies try `fast_s3` first."""

import os
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property, lru_cache, partial
from hashlib import md5
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
from mailslice.model.errors import BadSetting, MailsliceError, SlowDown, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import S3Settings
from mailslice.stores.blobs.fast_s3 import FastRequests
from mailslice.stores.blobs.key_ranges import before, inside, prefix_of
from mailslice.stores.blobs.keys import (
    is_impossible,
    missing_content,
    needs_boto3,
    no_answer,
    refused_credentials,
    service,
)
from mailslice.stores.blobs.store import MISSING, PIECE, BlobStore, StoredBlob, pause_s
from mailslice.stores.tls import s3_authorities

_REFUSED = frozenset(
    "InvalidAccessKeyId SignatureDoesNotMatch AccessDenied Forbidden 403 "
    "AuthorizationHeaderMalformed".split()
)
_BUCKET_EXISTS = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})
_NO_BUCKET = frozenset({"404", "NoSuchBucket", "NotFound"})
_NO_KEY = frozenset({"NoSuchKey", "404", "NotFound"})
_INVALID_KEY = frozenset(
    "400 BadRequest InvalidRequest InvalidURI KeyTooLongError XMinioInvalidObjectName".split()
)
"""Codes of file-based servers for a key that they can never hold ("/a")."""
_BUSY = frozenset(
    "SlowDown 503 ServiceUnavailable Throttling ThrottlingException RequestLimitExceeded "
    "TooManyRequests 429".split()
)
"""S3 gets too many requests: repeat later, and slower."""
_COPIES_A_TURN = 64
T = TypeVar("T")


@lru_cache(maxsize=8)
def _client(settings: S3Settings) -> Any:
    """A client with path-style addresses, one retry, and checksums only where S3 requires them."""
    secret, seconds = settings.secret_key, settings.timeout.total_seconds()
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
        verify=str(settings.ca) if s3_authorities(settings) else None,
        config=Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=min(5.0, seconds),
            read_timeout=seconds,
            retries={"total_max_attempts": 2, "mode": "standard"},
            max_pool_connections=32,
        ),
    )
    client.meta.events.register("before-sign.s3.DeleteObjects", _add_md5)
    return client


def _add_md5(request: Any, **_: object) -> None:
    """MinIO before 2025 refuses a bulk delete without it; boto3 sends a CRC32 alone."""
    digest = md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = b64encode(digest).decode()


os.register_at_fork(after_in_child=_client.cache_clear)


class S3BlobStore(BlobStore):
    """One bucket of S3."""

    lists_ranges = True

    def __init__(self, settings: S3Settings, bucket: str, **options: Any) -> None:
        super().__init__(settings, bucket, **options)
        self._fast = FastRequests(settings, bucket)

    def close(self) -> None:
        super().close()
        self._fast.close()

    @cached_property
    def client(self) -> Any:
        """The boto3 client, shared by all buckets: each new one would read S3's model (MBs)."""
        with self._translated():
            try:
                return _client(self.settings.model_copy(update={"bucket": ""}))
            except ValueError as error:
                raise BadSetting(f"MAILSLICE_S3_ENDPOINT, MAILSLICE_S3_REGION: {error}") from error

    def bucket_exists(self) -> bool:
        head = partial(self.client.head_bucket, Bucket=self.bucket)
        return self._unless(_NO_BUCKET, head) is not None

    def now_skew(self, clock: Clock = system_clock) -> timedelta:
        answer = self._ask(partial(self.client.head_bucket, Bucket=self.bucket))
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return parsedate_to_datetime(date) - clock() if date else timedelta(0)

    def ensure_bucket(self) -> bool:
        if self.bucket_exists():
            return False
        options: dict[str, Any] = {"Bucket": self.bucket}
        if self.settings.region not in ("", "us-east-1"):
            options["CreateBucketConfiguration"] = {"LocationConstraint": self.settings.region}
        create = partial(self.client.create_bucket, **options)
        return self._unless(_BUCKET_EXISTS, create) is not None

    def put(self, blob_id: BlobId, content: bytes) -> None:
        with self._translated():
            self._own_answer(self.client.put_object(Bucket=self.bucket, Key=blob_id, Body=content))

    def pieces(self, blob_id: BlobId) -> Iterator[bytes]:
        if is_impossible(blob_id) and not self.exists(blob_id):
            raise missing_content(self.settings, self.bucket, blob_id)
        with self._translated(blob_id):
            answer = self._own_answer(self.client.get_object(Bucket=self.bucket, Key=blob_id))
            yield from answer["Body"].iter_chunks(PIECE)

    def _own_answer(self, answer: dict[str, Any], field: str = "ETag") -> dict[str, Any]:
        """The answer, if it has the field that S3's answers have. Else raises StoreUnavailable."""
        if answer.get(field, "") == "":
            raise no_answer(self.settings, self.bucket, field)
        return answer

    def _list(self, **request: Any) -> dict[str, Any]:
        answer = self.client.list_objects_v2(Bucket=self.bucket, **request)
        return self._own_answer(answer, "IsTruncated")

    def exists(self, blob_id: BlobId) -> bool:
        """Whether the object exists. A listing confirms a miss: the bucket may be gone."""
        with self._translated():
            if not is_impossible(blob_id):
                try:
                    self._own_answer(self.client.head_object(Bucket=self.bucket, Key=blob_id))
                except ClientError as error:
                    if _code(error) not in _NO_KEY and not _cannot_exist(error, blob_id):
                        raise
                else:
                    return True
            return self._is_listed(blob_id)

    def _is_listed(self, blob_id: BlobId) -> bool:
        """Whether a listing has the key. Raises ClientError when the bucket is gone."""
        if not is_impossible(blob_id):
            try:
                listed = self._list(Prefix=blob_id, MaxKeys=1)
            except ClientError as error:
                if not _cannot_exist(error, blob_id):
                    raise
            else:
                return any(entry["Key"] == blob_id for entry in listed.get("Contents", ()))
        self.client.head_bucket(Bucket=self.bucket)
        return False

    def heads(self, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob | None]:
        """The state of each object now, by `fast_s3`, or by boto3 where that had no success."""
        blobs = self._fast.heads(keys)
        rest = [key for key in keys if key not in blobs]
        answers = dict(zip(rest, self._concurrently(self._head, rest), strict=True))
        return {key: blobs.get(key) or answers[key] for key in keys}

    def copies(self, source: str, targets: Mapping[BlobId, BlobId]) -> dict[BlobId, str]:
        """Copies within S3, so that the objects' metadata goes with them."""
        failed: dict[BlobId, str] = {}
        for keys in batches(targets, _COPIES_A_TURN):
            self._take(len(keys))
            done = self._fast.copies(source, {key: targets[key] for key in keys})
            rest = [key for key in keys if key not in done]
            answers = self._concurrently(lambda key: self._copy(source, key, targets[key]), rest)
            failed |= {key: why for key, why in zip(rest, answers, strict=True) if why is not None}
        return failed

    def _head(self, key: BlobId) -> StoredBlob | None:
        ask = partial(self.client.head_object, Bucket=self.bucket, Key=key)
        answer = self._unless(_NO_KEY, ask)
        return answer and _stored(self._own_answer(answer), key, "ContentLength")

    def _copy(self, source: str, key: BlobId, to: BlobId) -> str | None:
        origin = {"Bucket": source, "Key": key}
        copy = partial(self.client.copy_object, Bucket=self.bucket, Key=to, CopySource=origin)
        try:
            # A 404 without this code is not S3's.
            if (answer := self._unless({"NoSuchKey"}, copy)) is None:
                return MISSING
            is_own = "ETag" in answer.get("CopyObjectResult", ())
            return None if is_own else str(no_answer(self.settings, self.bucket))
        except StoreUnavailable as error:
            if isinstance(error, SlowDown) or not isinstance(error.__cause__, ClientError):
                raise
            return str(error)  # S3's answer concerns this object: the others go on

    def first(self, low: str, high: str = "") -> BlobId | None:
        return next((blob.key for page, _ in self._pages(low, high, 1) for blob in page), None)

    def folders(self, prefix: str) -> list[str]:
        """The folders right below `prefix`, which is empty or ends with a slash."""
        request = {"Prefix": prefix, "Delimiter": "/"}
        folders: list[str] = []
        while True:
            answer = self._ask(partial(self._list, **request))
            common = (entry["Prefix"] for entry in answer.get("CommonPrefixes", ()))
            folders += [text[len(prefix) :].rstrip("/") for text in common]
            if not answer["IsTruncated"]:
                return folders
            request["ContinuationToken"] = answer["NextContinuationToken"]

    def _pages(
        self, low: str, high: str, limit: int | None = None
    ) -> Iterator[tuple[Sequence[StoredBlob], bool]]:
        request: dict[str, Any] = {"MaxKeys": limit or self.page_size}
        if prefix := prefix_of(low, high):
            request["Prefix"] = prefix
        if low != prefix:
            request["StartAfter"] = before(low)
        more = True
        while more:
            answer = self._ask(partial(self._list, **request))
            page = [_stored(entry, entry["Key"], "Size") for entry in answer.get("Contents", ())]
            is_beyond = bool(high and page and page[-1].key >= high)
            more = answer["IsTruncated"] and not is_beyond
            yield [blob for blob in page if inside(blob.key, low, high)], more
            if more:
                request.pop("StartAfter", None)
                request["ContinuationToken"] = answer["NextContinuationToken"]

    def _delete(self, keys: Sequence[BlobId]) -> dict[BlobId, str]:
        failed: dict[BlobId, str] = {}
        began, tries = time.monotonic(), 0
        while keys:
            self._take(len(keys))
            codes = self._deleted(keys)
            if codes.keys() == {*keys} and _REFUSED.issuperset(codes.values()):
                why = f"{codes[keys[0]]}, bucket {self.bucket!r}"
                raise refused_credentials(self.settings, why)
            keys = [key for key, code in codes.items() if code in _BUSY]
            refused = codes.keys() - set(keys)
            failed |= {key: f"S3 would not delete it: {codes[key]}" for key in refused}
            if keys and time.monotonic() - began >= self.patience_s:
                return failed | dict.fromkeys(keys, "S3 is too busy")
            if keys:
                self.sleep(pause_s(tries))
                tries += 1
        return failed

    def _deleted(self, keys: Sequence[BlobId]) -> dict[BlobId, str]:
        """Sends one request. Returns the error codes of the keys that were not deleted."""
        request = {"Objects": [{"Key": key} for key in keys]}
        ask = partial(self.client.delete_objects, Bucket=self.bucket, Delete=request)
        answer = self._ask(ask)
        errors = answer.get("Errors") or self._own_answer(answer, "Deleted").get("Errors", ())
        codes = {BlobId(error["Key"]): str(error.get("Code", "")) for error in errors}
        return {key: code for key, code in codes.items() if code not in _NO_KEY}

    def _ask(self, ask: Callable[[], T]) -> T:
        """The result of `ask`, repeated as by `_patiently`, with S3's errors translated."""
        return self._patiently(self._translated()(ask))

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

    @contextmanager
    def _translated(self, blob_id: BlobId | None = None) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError, RecursionError) as error:
            raise self._translate(error, blob_id) from error

    def _translate(self, error: Exception, blob_id: BlobId | None) -> MailsliceError:
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return refused_credentials(self.settings, str(error))
        where = f"{service(self.settings)}, bucket {self.bucket!r}"
        text = " ".join(str(error).split())
        if isinstance(error, RecursionError):  # botocore takes any redirect for one to a region
            return BadSetting(f"{where} redirects: is MAILSLICE_S3_ENDPOINT that of https?")
        if isinstance(error, ClientError):
            code = _code(error)
            if code in _BUSY:
                return SlowDown(f"{where} is too busy: {text}")
            if code in _REFUSED:
                return refused_credentials(self.settings, f"{code}, bucket {self.bucket!r}")
            if blob_id is not None and (
                code == "NoSuchKey" or (_cannot_exist(error, blob_id) and not self.exists(blob_id))
            ):
                return missing_content(self.settings, self.bucket, blob_id)
        return StoreUnavailable(f"{where}: {text}")


def _cannot_exist(error: ClientError, blob_id: BlobId) -> bool:
    return _code(error) in _INVALID_KEY and needs_boto3(blob_id)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _stored(answer: Mapping[str, Any], key: str, size: str) -> StoredBlob:
    """The object of an answer of S3. `size` is the name of the field with its size."""
    return StoredBlob(BlobId(key), int(answer[size]), answer["LastModified"])
