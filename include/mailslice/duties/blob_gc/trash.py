"""Deleted content that is kept for a while in mailslice's own bucket: `kept/EXPIRES/RUN/KEY`.

Keys are in the order of EXPIRES.

Copies are made within S3, so that what James keeps in an object's metadata comes back with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from mailslice.model.errors import BadSetting
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings
from mailslice.stores.blobs.key_ranges import behind
from mailslice.stores.blobs.opening import open_patient_store
from mailslice.stores.blobs.store import Turns

TRASH_PREFIX = "kept/"
_PLACE = re.compile(r"kept/(\d{8}T\d{6}Z)/([^/]+)/(.+)", re.ASCII | re.DOTALL)
_TIME = "%Y%m%dT%H%M%SZ"
RESTORED, PRESENT, EXPIRED = "restored", "present", "no copy"


@dataclass(frozen=True, slots=True)
class Kept:
    """One copy: of the blob `key`, deleted by `run`, kept until `expires`; `size` in bytes."""

    expires: datetime
    run: str
    key: BlobId
    size: int = 0

    @property
    def place(self) -> BlobId:
        return BlobId(f"{TRASH_PREFIX}{self.expires:{_TIME}}/{self.run}/{self.key}")

    @classmethod
    def of(cls, place: str, size: int) -> Kept | None:
        """The copy that has this key in the own bucket; None when it is not one."""
        if (match := _PLACE.fullmatch(place)) is None:
            return None
        try:
            expires = datetime.strptime(match[1], _TIME).replace(tzinfo=UTC)
        except ValueError:  # digits that are no time
            return None
        return cls(expires, match[2], BlobId(match[3]), size)


class KeptBlobs:
    """The kept copies, and the way back.

    Raises BadSetting when the own bucket is James' bucket: copies there would be deleted, too.
    """

    def __init__(self, settings: Settings, turns: Turns | None = None) -> None:
        if settings.own.bucket == settings.s3.bucket:
            raise BadSetting(
                f"MAILSLICE_OWN_BUCKET={settings.own.bucket} is James' bucket; "
                "mailslice's own content needs another"
            )
        self.own = open_patient_store(settings.s3, settings.own.bucket, turns)
        self.james = open_patient_store(settings.s3, settings.s3.bucket, turns)

    def __enter__(self) -> KeptBlobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.own.close()
        self.james.close()

    def copy_blobs(self, copies: Iterable[Kept]) -> dict[BlobId, str]:
        """Copy blobs into the own bucket; the keys of those that failed, with the reason."""
        return self.own.copies(self.james.bucket, {copy.key: copy.place for copy in copies})

    def pages(self, folder: str = TRASH_PREFIX) -> Iterator[list[Kept]]:
        """All copies below a folder, soonest to expire first."""
        for page in self.own.pages(folder, behind(folder)):
            yield [copy for blob in page if (copy := Kept.of(blob.key, blob.size)) is not None]

    def folders(self) -> Iterator[str]:
        """`kept/EXPIRES/RUN/` of every run that has copies: one request each."""
        low = TRASH_PREFIX
        while (key := self.own.first(low, behind(TRASH_PREFIX))) is not None:
            copy = Kept.of(key, 0)
            if copy:
                yield (folder := copy.place.removesuffix(copy.key))
            low = behind(folder) if copy else f"{key}\0"

    def of_run(self, run: str) -> Iterator[Kept]:
        for folder in self.folders():
            if run_of(folder) == run:
                for page in self.pages(folder):
                    yield from page

    def of_keys(self, keys: Iterable[BlobId]) -> dict[BlobId, Kept]:
        """The copy of each key that has one; the one that is kept longest."""
        copies: dict[BlobId, Kept] = {}
        requested = list(keys)
        for folder in self.folders():
            stored = self.own.heads([BlobId(f"{folder}{key}") for key in requested])
            known = (
                Kept.of(place, blob.size) for place, blob in stored.items() if blob is not None
            )
            copies |= {copy.key: copy for copy in known if copy is not None}
        return copies

    def restore(self, copies: Iterable[Kept]) -> dict[BlobId, str]:
        """Put copies back where no such blob is now: key -> `restored`, `present`, or why not."""
        newest, missing = self._missing(copies)
        failed = self.james.copies(
            self.own.bucket, {copy.place: key for key, copy in missing.items()}
        )
        back = {key: failed.get(copy.place, RESTORED) for key, copy in missing.items()}
        return {key: back.get(key, PRESENT) for key in newest}

    def would_restore(self, copies: Iterable[Kept]) -> dict[BlobId, str]:
        newest, missing = self._missing(copies)
        return {key: RESTORED if key in missing else PRESENT for key in newest}

    def _missing(self, copies: Iterable[Kept]) -> tuple[dict[BlobId, Kept], dict[BlobId, Kept]]:
        """The longest kept copy of each key; and of those, the ones whose blob is not there."""
        newest = {copy.key: copy for copy in sorted(copies, key=lambda copy: copy.expires)}
        stored = self.james.heads(list(newest))
        return newest, {key: copy for key, copy in newest.items() if stored[key] is None}

    def expired(self, now: datetime, but_of: str) -> list[str]:
        """The folders of runs whose copies' time is over, but those of one run."""
        return [
            folder
            for folder in self.folders()
            if folder.split("/")[1] <= f"{now:{_TIME}}" and run_of(folder) != but_of
        ]

    def forget(self, folders: Iterable[str], but: Collection[str]) -> tuple[int, int]:
        """Delete the copies below these folders, but for those of the blobs in `but`.

        How many, and how many could not be deleted.
        """
        deleted = failed = 0
        for page in (page for folder in folders for page in self.pages(folder)):
            over = [copy.place for copy in page if copy.key not in but]
            problems = self.own.delete_many(over)
            deleted, failed = deleted + len(over) - len(problems), failed + len(problems)
        return deleted, failed


def run_of(folder: str) -> str:
    """The run whose copies are in a folder `kept/EXPIRES/RUN/`."""
    return folder.split("/")[2]
