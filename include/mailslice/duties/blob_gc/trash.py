"""Deleted content that is kept for a while in the own bucket: `kept/EXPIRES/RUN@BUCKET/KEY`.

Keys are in the order of EXPIRES. BUCKET is James': copies of another one are another deployment's,
and left alone. Copies of earlier versions have no BUCKET.

Copies are made within S3, so that what James keeps in an object's metadata comes back with it.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Self

from mailslice.model.errors import BadSetting
from mailslice.model.mail import BlobId
from mailslice.model.settings import Settings
from mailslice.stores.blobs.key_ranges import behind
from mailslice.stores.blobs.opening import open_patient_store
from mailslice.stores.blobs.store import Turns

TRASH_PREFIX = "kept/"
_PLACE = re.compile(r"kept/(\d{8}T\d{6}Z)/([^/@]+)(@[^/]+)?/(.+)", re.ASCII | re.DOTALL)
_TIME = "%Y%m%dT%H%M%SZ"
RESTORED, PRESENT, EXPIRED = "restored", "present", "no copy"


@dataclass(frozen=True, slots=True)
class Kept:
    """One copy: of the blob `key` of `bucket`, deleted by `run`, kept until `expires`.

    `size` in bytes; `bucket` is empty in what an earlier version kept.
    """

    expires: datetime
    run: str
    key: BlobId
    size: int = 0
    bucket: str = ""

    @property
    def place(self) -> BlobId:
        return BlobId(f"{self.folder}{self.key}")

    @property
    def folder(self) -> str:
        """That of all copies of the run."""
        of = f"{self.run}@{self.bucket}" if self.bucket else self.run
        return f"{TRASH_PREFIX}{self.expires:{_TIME}}/{of}/"

    @classmethod
    def of(cls, place: str, size: int) -> Self | None:
        """The copy that has this key in the own bucket; None when it is not one."""
        if (match := _PLACE.fullmatch(place)) is None:
            return None
        try:
            expires = datetime.strptime(match[1], _TIME).replace(tzinfo=UTC)
        except ValueError:  # digits that are no time
            return None
        return cls(expires, match[2], BlobId(match[4]), size, (match[3] or "")[1:])


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.own.close()
        self.james.close()

    def runs(self) -> Iterator[Kept]:
        """Of every run that has copies of James' bucket the first one, soonest to expire first."""
        low = TRASH_PREFIX
        while (key := self.own.first(low, behind(TRASH_PREFIX))) is not None:
            copy = Kept.of(key, 0)
            if copy and copy.bucket in {"", self.james.bucket}:
                yield copy
            low = behind(copy.folder) if copy else f"{key}\0"

    def pages(self, folders: Iterable[str]) -> Iterator[list[Kept]]:
        """All copies below these folders of runs."""
        for folder in folders:
            for page in self.own.pages(folder, behind(folder)):
                yield [copy for blob in page if (copy := Kept.of(blob.key, blob.size)) is not None]

    def of_run(self, run: str | None) -> Iterator[Kept]:
        """All copies of one run, or of all."""
        folders = (one.folder for one in self.runs() if run in {None, one.run})
        return chain.from_iterable(self.pages(folders))

    def of_keys(self, keys: Iterable[BlobId]) -> dict[BlobId, Kept]:
        """The copy of each key that has one; the one that is kept longest."""
        copies: dict[BlobId, Kept] = {}
        requested = list(keys)
        for run in self.runs():
            stored = self.own.heads([BlobId(f"{run.folder}{key}") for key in requested])
            known = (
                Kept.of(place, blob.size) for place, blob in stored.items() if blob is not None
            )
            copies |= {copy.key: copy for copy in known if copy is not None}
        return copies

    def restore(self, copies: Iterable[Kept], *, dry_run: bool = False) -> dict[BlobId, str]:
        """Put copies back where no such blob is now: key -> `restored`, `present`, or why not."""
        newest = {copy.key: copy for copy in sorted(copies, key=lambda copy: copy.expires)}
        stored = self.james.heads(list(newest))
        missing = {copy.place: key for key, copy in newest.items() if stored[key] is None}
        failed = {} if dry_run else self.james.copies(self.own.bucket, missing)
        back = {key: failed.get(place, RESTORED) for place, key in missing.items()}
        return {key: back.get(key, PRESENT) for key in newest}

    def expired(self, now: datetime, but_of: str) -> list[str]:
        """The folders of runs whose copies' time is over, but those of one run."""
        return [one.folder for one in self.runs() if one.expires <= now and one.run != but_of]

    def forget(self, folders: Iterable[str], but: Collection[str]) -> tuple[int, int]:
        """Delete the copies below these folders, but for those of the blobs in `but`.

        How many, and how many could not be deleted.
        """
        deleted = failed = 0
        for page in self.pages(folders):
            over = [copy.place for copy in page if copy.key not in but]
            problems = self.own.delete_many(over)
            deleted, failed = deleted + len(over) - len(problems), failed + len(problems)
        return deleted, failed
