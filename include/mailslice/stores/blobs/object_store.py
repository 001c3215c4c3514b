"""Opens buckets by obstore (the Rust crate object_store). Buckets of Azure and GCS use it alone."""

import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from mailslice.model.batches import batches
from mailslice.model.clock import Clock, system_clock
from mailslice.model.errors import BadSetting, MailsliceError, SlowDown, StoreUnavailable
from mailslice.model.mail import BlobId
from mailslice.model.settings import BlobProvider, S3Settings
from mailslice.stores.blobs.key_ranges import inside, prefix_of
from mailslice.stores.blobs.keys import (
    GCS_ENDPOINT,
    escape_key,
    is_impossible,
    missing_content,
    refused_credentials,
    service,
    unescape_key,
)
from mailslice.stores.blobs.store import MISSING, PIECE, BlobStore, StoredBlob
from mailslice.stores.tls import s3_authorities

CRATE_ERRORS = (BaseError, OSError, TimeoutError)
"""obstore raises FileNotFoundError for a missing object, its own classes for the rest."""
_NO_BUCKET = re.compile("ContainerNotFound|NoSuchBucket|404 Not Found")
_REFUSED = re.compile(
    "401 Unauthorized|403 Forbidden|AuthorizationHeaderMalformed|Invalid Access Key|"
    "Unable to decode service account|Invalid RSA key"
)
_BUSY = re.compile(r"\b(429 Too Many Requests|503 Service Unavailable)\b|ServerBusy")
OpenBucket = Callable[[str], ObjectStore]
T = TypeVar("T")


def open_obstore(settings: S3Settings, bucket: str, **client: timedelta) -> ObjectStore:
    """Opens a bucket. `client`: further client options; `read_timeout` includes the upload."""
    try:
        return _opened(settings, bucket, _options(settings, client))
    except CRATE_ERRORS as error:
        raise translated(settings, bucket, error) from error


def _opened(settings: S3Settings, bucket: str, options: Any) -> ObjectStore:
    secret = settings.secret_key.get_secret_value() if settings.secret_key else None
    if settings.provider is BlobProvider.S3:
        # AWS_ENDPOINT_URL_S3 of the environment precedes `endpoint`, and a token joins plain keys.
        s3: Any = {"aws_endpoint_url_s3": settings.endpoint, "region": settings.region}
        s3["virtual_hosted_style_request"] = False
        if settings.access_key is not None and secret is not None:
            keys = {"access_key_id": settings.access_key, "secret_access_key": secret}
            options["credential_provider"] = lambda: {**keys, "expires_at": None}
            s3["skip_signature"] = False
        return S3Store(bucket, config=s3, **options)
    if settings.provider is BlobProvider.GCS:
        account: Any = {} if secret is None else {"service_account_key": secret}
        return GCSStore(bucket, config=account, **options)
    account_name = settings.access_key or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    account_name = account_name or (urlsplit(settings.endpoint).hostname or "").partition(".")[0]
    config: Any = {} if secret is None else {"account_key": secret}
    config |= {"endpoint": settings.endpoint, "account_name": account_name}
    return AzureStore(bucket, config=config, **options)


def _options(settings: S3Settings, more: Mapping[str, timedelta]) -> dict[str, Any]:
    """Options for few and short retries. Reading a large object may take an hour."""
    client: dict[str, Any] = {
        "allow_http": settings.endpoint.startswith("http://"),
        "connect_timeout": min(settings.timeout, timedelta(seconds=5)),
        "timeout": timedelta(hours=1),
        "pool_idle_timeout": timedelta(seconds=20),
        **more,
    }
    if authorities := s3_authorities(settings):
        client["root_certificate"] = authorities
    pauses = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1)}
    retry: dict[str, Any] = {"max_retries": 2, "backoff": {**pauses, "base": 2}}
    retry["retry_timeout"] = settings.timeout / 2
    return {"client_options": client, "retry_config": retry}


def translated(settings: S3Settings, bucket: str, error: Exception) -> MailsliceError:
    """An error of obstore as mailslice's."""
    if "RequestTimeTooSkewed" in str(error):
        wrong = f"{service(settings)} refuses the time of this machine's clock, bucket {bucket!r}"
        return StoreUnavailable(f"{wrong}: set it right (NTP)")
    refused = _REFUSED.search(str(error))  # listings and bulk deletes raise no specific class
    if refused or isinstance(error, UnauthenticatedError | PermissionDeniedError):
        why = refused[0] if refused else type(error).__name__
        return refused_credentials(settings, f"{why}, bucket {bucket!r}")
    # Rust's debug form of the causes follows the text.
    text = " ".join(str(error).partition("\n\nDebug source")[0].split())[:300]
    late = f"no answer in {settings.timeout.total_seconds():g} s"
    why = late if isinstance(error, TimeoutError) else text
    silent = " does not answer" if "error sending request" in text else ""
    return StoreUnavailable(f"{service(settings)}{silent}, bucket {bucket!r}: {why}")


class ObjectBlobStore(BlobStore):
    """A bucket of Azure or GCS. Its objects have the names of `escape_key`.

    Tests pass stores in memory or on a disk as `open_bucket`. Such a disk must hold no real mail:
    obstore does not sync its writes.
    """

    lists_ranges = False

    def __init__(
        self,
        settings: S3Settings,
        bucket: str,
        *,
        open_bucket: OpenBucket | None = None,
        **options: Any,
    ) -> None:
        super().__init__(settings, bucket, **options)
        self._open_bucket = open_bucket or partial(
            open_obstore, settings, read_timeout=settings.timeout
        )

    @cached_property
    def _store(self) -> ObjectStore:
        return self._open_bucket(self.bucket)

    def bucket_exists(self) -> bool:
        try:
            next(iter(obstore.list(self._store, chunk_size=1)), None)
        except CRATE_ERRORS as error:
            if isinstance(error, FileNotFoundError) or _NO_BUCKET.search(str(error)):
                return False
            raise self._translate(error) from error
        return True

    def ensure_bucket(self) -> bool:
        """Creates nothing: raises BadSetting where the bucket is missing."""
        if self.bucket_exists():
            return False
        raise BadSetting(
            f"{service(self.settings)} has no bucket {self.bucket!r}: create it "
            "(MAILSLICE_S3_BUCKET, MAILSLICE_OWN_BUCKET), mailslice does so in S3 only"
        )

    def now_skew(self, clock: Clock = system_clock) -> timedelta:
        """Compares the Date header of the service's answer, whatever its status."""
        url = GCS_ENDPOINT if self.settings.provider is BlobProvider.GCS else self.settings.endpoint
        tls = ssl.create_default_context(cafile=self.settings.ca) if self.settings.ca else None
        seconds = self.settings.timeout.total_seconds()
        try:
            request = Request(url, method="HEAD")  # noqa: S310 - the settings allow http alone
            with urlopen(request, timeout=seconds, context=tls) as answer:  # noqa: S310
                date = answer.headers["Date"]
        except HTTPError as error:
            date = error.headers["Date"]
        except (URLError, OSError) as error:
            raise self._translate(error) from error
        return parsedate_to_datetime(date) - clock() if date else timedelta(0)

    def put(self, blob_id: BlobId, content: bytes | obstore.Bytes) -> None:
        if is_impossible(blob_id):
            raise StoreUnavailable(f"{service(self.settings)} can hold no object {blob_id!r}")
        try:
            self._ask(lambda path: obstore.put(self._store, path, content), blob_id)
        except FileNotFoundError as error:
            raise self._no_bucket() from error

    def pieces(self, blob_id: BlobId) -> Iterator[bytes]:
        if is_impossible(blob_id):
            raise self._missing(blob_id)
        try:
            content = obstore.get(self._store, escape_key(blob_id))
            yield from map(bytes, content.stream(min_chunk_size=PIECE))
        except FileNotFoundError as error:
            raise self._missing(blob_id) from error
        except CRATE_ERRORS as error:
            raise self._translate(error) from error

    def exists(self, blob_id: BlobId) -> bool:
        """Whether the object exists. A listing confirms a miss: the bucket may be gone."""
        if self._head(blob_id) is not None:
            return True
        if not self.bucket_exists():
            raise self._no_bucket()
        return False

    def heads(self, keys: Sequence[BlobId]) -> dict[BlobId, StoredBlob | None]:
        return dict(zip(keys, self._concurrently(self._head, keys), strict=True))

    def copies(self, source: str, targets: Mapping[BlobId, BlobId]) -> dict[BlobId, str]:
        """Copies by a GET and a PUT each: obstore copies within one bucket only."""
        origin = self._open_bucket(source)

        def copy(key: BlobId) -> str | None:
            self._take()
            try:
                content = self._ask(lambda path: obstore.get(origin, path).bytes(), key)
            except FileNotFoundError:
                return MISSING
            self.put(targets[key], content)
            return None

        answers = zip(targets, self._concurrently(copy, list(targets)), strict=True)
        return {key: why for key, why in answers if why is not None}

    def first(self, low: str, high: str = "") -> BlobId | None:
        return min((blob.key for page in self.pages(low, high) for blob in page), default=None)

    def _pages(
        self, low: str, high: str, limit: int | None = None
    ) -> Iterator[tuple[Sequence[StoredBlob], bool]]:
        """Lists all of the folder that the range's keys share, and keeps the range's."""
        pages = batches(self._listed(low, high), limit or self.page_size)
        page: Sequence[StoredBlob] | None = next(pages, [])
        while page is not None:
            following = next(pages, None)
            yield page, following is not None
            page = following

    def _listed(self, low: str, high: str) -> Iterator[StoredBlob]:
        folder = prefix_of(low, high).rpartition("/")[0]
        try:
            for chunk in obstore.list(self._store, escape_key(folder) if folder else None):
                for meta in chunk:
                    key = unescape_key(meta["path"])
                    if inside(key, low, high):
                        yield StoredBlob(BlobId(key), int(meta["size"]), meta["last_modified"])
        except CRATE_ERRORS as error:
            raise self._translate(error) from error

    def _delete(self, keys: Sequence[BlobId]) -> dict[BlobId, str]:
        self._take(len(keys))
        possible = [key for key in keys if not is_impossible(key)]
        try:
            obstore.delete(self._store, list(map(escape_key, possible)))
        except CRATE_ERRORS as error:
            # A missing object is an error, too, and may stop the deletion of the others.
            if not self.bucket_exists():
                raise self._no_bucket() from error
            return self._delete_singly(possible)
        return {}

    def _delete_singly(self, keys: Sequence[BlobId]) -> dict[BlobId, str]:
        """Deletes one key a request. Raises the first key's error if all fail."""

        def delete(key: BlobId) -> MailsliceError | None:
            try:
                self._ask(lambda path: obstore.delete(self._store, path), key)
            except FileNotFoundError:
                return None
            except MailsliceError as error:
                return error
            return None

        errors = zip(keys, self._concurrently(delete, keys), strict=True)
        failed = {key: error for key, error in errors if error is not None}
        if failed and len(failed) == len(keys):
            raise next(iter(failed.values()))
        return {key: f"it was not deleted: {error}" for key, error in failed.items()}

    def _head(self, key: BlobId) -> StoredBlob | None:
        if is_impossible(key):
            return None
        try:
            meta = self._ask(lambda path: obstore.head(self._store, path), key)
        except FileNotFoundError:
            return None
        return StoredBlob(key, int(meta["size"]), meta["last_modified"].replace(microsecond=0))

    def _ask(self, ask: Callable[[str], T], key: BlobId) -> T:
        """The result of `ask` for the object's path. FileNotFoundError is not translated."""

        def translated() -> T:
            try:
                return ask(escape_key(key))
            except FileNotFoundError:
                raise
            except CRATE_ERRORS as error:
                raise self._translate(error) from error

        return self._patiently(translated)

    def _missing(self, blob_id: BlobId) -> MailsliceError:
        if not self.bucket_exists():
            return self._no_bucket()
        return missing_content(self.settings, self.bucket, blob_id)

    def _no_bucket(self) -> StoreUnavailable:
        return StoreUnavailable(f"{service(self.settings)}: there is no bucket {self.bucket!r}")

    def _translate(self, error: Exception) -> MailsliceError:
        known = translated(self.settings, self.bucket, error)
        return SlowDown(str(known)) if _BUSY.search(str(error)) else known
