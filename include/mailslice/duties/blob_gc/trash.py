"""Copies of deleted blobs in mailslice's own bucket: `kept/EXPIRES/RUN@BUCKET/KEY`.

Keys sort by EXPIRES. BUCKET is James' bucket. Copies with another BUCKET belong to another
deployment and stay. Copies of earlier versions have no BUCKET.

S3 makes the copies itself, so a restored object has the metadata that James wrote.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Self

from mailslice.model.closing import Closing
from mailslice.model.errors import BadSetting
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings
from mailslice.stores.blobs.factory import open_patient_store
from mailslice.stores.blobs.key_ranges import behind
from mailslice.stores.blobs.store import Turns

TRASH_PREFIX = "kept/"
_PATH = re.compile(r"kept/(\d{8}T\d{6}Z)/([^/@]+)(@[^/]+)?/(.+)", re.ASCII | re.DOTALL)
_TIME = "%Y%m%dT%H%M%SZ"
RESTORED, PRESENT, NO_COPY = "restored", "present", "no copy"


@dataclass(frozen=True, slots=True)
class Trashed:
    """The copy of a blob `key` of `bucket` that `run` deleted. It stays until `expires`.

    `size` is in bytes. `bucket` is empty in copies of earlier versions.
    """

    expires: datetime
    run: str
    key: BlobId
    size: int = 0
    bucket: str = ""

    @property
    def path(self) -> BlobId:
        return BlobId(f"{self.folder}{self.key}")

    @property
    def folder(self) -> str:
        """The prefix of all copies of the run."""
        run = f"{self.run}@{self.bucket}" if self.bucket else self.run
        return f"{TRASH_PREFIX}{self.expires:{_TIME}}/{run}/"

    @classmethod
    def of(cls, path: str, size: int) -> Self | None:
        """The copy that has this object key in the own bucket; None if it is no copy's key."""
        if (match := _PATH.fullmatch(path)) is None:
            return None
        try:
            expires = datetime.strptime(match[1], _TIME).replace(tzinfo=UTC)
        except ValueError:  # the digits are no time
            return None
        return cls(expires, match[2], BlobId(match[4]), size, (match[3] or "")[1:])


class Trash(Closing):
    """The trash: finds, restores and deletes copies.

    Raises BadSetting if the own bucket is James' bucket: blob_gc would delete copies there, too.
    """

    def __init__(self, settings: Settings, turns: Turns | None = None) -> None:
        if settings.own.bucket == settings.s3.bucket:
            raise BadSetting(
                f"MAILSLICE_OWN_BUCKET={settings.own.bucket} is James' bucket; "
                "mailslice's own content needs another"
            )
        self.own = open_patient_store(settings.s3, settings.own.bucket, turns)
        self.james = open_patient_store(settings.s3, settings.s3.bucket, turns)

    def close(self) -> None:
        self.own.close()
        self.james.close()

    def runs(self) -> Iterator[Trashed]:
        """The first copy of each run that has copies of James' bucket, in the order of expiry."""
        low = TRASH_PREFIX
        while (key := self.own.first(low, behind(TRASH_PREFIX))) is not None:
            copy = Trashed.of(key, 0)
            if copy and copy.bucket in {"", self.james.bucket}:
                yield copy
            low = behind(copy.folder) if copy else f"{key}\0"

    def pages(self, folders: Iterable[str]) -> Iterator[list[Trashed]]:
        """All copies below these folders (`Trashed.folder`), page by page."""
        for folder in folders:
            for page in self.own.pages(folder, behind(folder)):
                copies = (Trashed.of(blob.key, blob.size) for blob in page)
                yield [copy for copy in copies if copy]

    def of_run(self, run: str | None) -> Iterator[Trashed]:
        """All copies of a run; None: of all runs."""
        folders = (copy.folder for copy in self.runs() if run in {None, copy.run})
        return chain.from_iterable(self.pages(folders))

    def of_keys(self, keys: Iterable[BlobId]) -> dict[BlobId, Trashed]:
        """The copy of each key that has one. Of several copies, the one that expires last."""
        copies: dict[BlobId, Trashed] = {}
        requested = list(keys)
        for run in self.runs():
            stored = self.own.heads([BlobId(f"{run.folder}{key}") for key in requested])
            of_run = (Trashed.of(path, blob.size) for path, blob in stored.items() if blob)
            copies |= {copy.key: copy for copy in of_run if copy is not None}
        return copies

    def restore(self, copies: Iterable[Trashed], *, dry_run: bool = False) -> dict[BlobId, str]:
        """Restore copies whose blob is missing. Key -> `restored`, `present`, or why it failed."""
        newest = {copy.key: copy for copy in sorted(copies, key=lambda copy: copy.expires)}
        stored = self.james.heads(list(newest))
        missing = {copy.path: key for key, copy in newest.items() if stored[key] is None}
        failed = {} if dry_run else self.james.copies(self.own.bucket, missing)
        outcomes = {key: failed.get(path, RESTORED) for path, key in missing.items()}
        return {key: outcomes.get(key, PRESENT) for key in newest}

    def expired(self, now: datetime, but_of: str) -> list[str]:
        """The folders of runs whose copies have expired, except the run `but_of`."""
        return [copy.folder for copy in self.runs() if copy.expires <= now and copy.run != but_of]

    def forget(self, folders: Iterable[str], but: Collection[str]) -> tuple[int, int]:
        """Delete the copies below these folders, except copies of the blobs in `but`.

        Gives the number of deleted copies, and of copies that could not be deleted.
        """
        deleted = failed = 0
        for page in self.pages(folders):
            paths = [copy.path for copy in page if copy.key not in but]
            problems = self.own.delete_many(paths)
            deleted, failed = deleted + len(paths) - len(problems), failed + len(problems)
        return deleted, failed
