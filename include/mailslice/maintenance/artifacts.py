"""Files of plans, reports and Data Docs below one location: a folder or `s3a://bucket/prefix`.

Small files go by `file_stores`. Parquet files go by pyarrow's filesystems, so that executors need
no Hadoop jars for S3.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mailslice.engine.errors import naming_location
from mailslice.maintenance.file_stores import BucketFiles, DiskFiles
from mailslice.maintenance.run_request import RunRequest
from mailslice.model.clock import utc_text
from mailslice.model.durations import format_duration
from mailslice.model.errors import BadSetting, PlanRefused
from mailslice.model.names import file_name
from mailslice.model.settings import BlobProvider, S3Settings, Settings, artifacts_of

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FILES: Mapping[str, str] = {
    "plan": "plan.json",
    "check": "check.json",
    "apply": "applied.json",
    "verify": "verify.json",
    "report": "report.json",
}
"""The file in the run's folder that holds each step's summary."""
PLAN_FOLDER = "plan"
"""The folder of a plan's Parquet files, in the run's folder."""
REQUEST = "request.json"
"""Params and user of the plan. The steps after it take their params from here."""
APPROVAL = "approval.json"
"""The digest of the plan that a person was asked about; then who approved it, and when."""
_S3 = re.compile(r"s3[an]?://([^/@]+)(?:/|\Z)(.*)")


class Artifacts:
    """Files below one location; paths have `/`. Pickled as location and settings, for executors."""

    def __init__(self, location: str, s3: S3Settings) -> None:
        self.location = location.rstrip("/") or "/"
        self._s3 = s3
        match = _S3.fullmatch(self.location)
        if "://" in self.location and not match:
            # What is before an @ may be S3 keys.
            shown = "***@" + location.rpartition("@")[2] if "@" in location else location
            raise BadSetting(
                f"MAILSLICE_ARTIFACTS={shown!r}: allowed are a folder or s3a://bucket/prefix"
            )
        if match and s3.provider is not BlobProvider.S3:
            raise BadSetting(
                f"MAILSLICE_ARTIFACTS={location!r}: with MAILSLICE_S3_PROVIDER={s3.provider.value} "
                "allowed is a folder"
            )
        self.bucket = match[1] if match else None
        root = match and posixpath.join(match[1], match[2].strip("/"))
        self._root = root or _absolute(self.location)

    def __reduce__(self) -> tuple[object, ...]:
        return Artifacts, (self.location, self._s3)

    @cached_property
    def filesystem(self) -> FileSystem:
        """Pyarrow's filesystem of the location, for Parquet files."""
        from pyarrow import fs

        if self.bucket is None:
            return fs.LocalFileSystem()
        scheme, _, host = self._s3.endpoint.partition("://")
        seconds = self._s3.timeout.total_seconds()
        return fs.S3FileSystem(
            access_key=self._s3.access_key,
            secret_key=self._s3.secret_key.get_secret_value() if self._s3.secret_key else None,
            endpoint_override=host.rstrip("/"),
            scheme=scheme,
            region=self._s3.region,
            connect_timeout=seconds,
            request_timeout=seconds,
            allow_bucket_creation=True,
            tls_ca_file_path=str(self._s3.ca) if self._s3.ca else None,
        )

    def path(self, name: str) -> str:
        """The path of `name` as `filesystem` takes it."""
        return posixpath.join(self._root, name) if name else self._root

    def uri(self, name: str) -> str:
        """Where `name` is, for people and reports."""
        return f"{self.location}/{name}" if self.bucket else self.path(name)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file atomically, also if the power fails."""
        with naming_location(self.uri(name)):
            self._files.write(self._key(name), data)

    def read(self, name: str) -> bytes | None:
        """The file's bytes; None when there is no such file."""
        with naming_location(self.uri(name)):
            return self._files.read(self._key(name))

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return self.modified(name) is not None

    def modified(self, name: str) -> datetime | None:
        """When the file was last written (UTC); None when there is no such file."""
        with naming_location(self.uri(name)):
            return self._files.modified(self._key(name))

    def folder(self, name: str) -> None:
        """Make a folder, so that writers need not make it; on S3 the bucket."""
        with naming_location(self.uri(name)):
            self._files.make_folder(self._key(name))

    def files(self, name: str) -> list[str]:
        """All files below the folder `name`, relative to the location, sorted."""
        return sorted(self.times(name))

    def times(self, name: str) -> dict[str, datetime]:
        """The paths of `files`, each with the time of its last write (UTC)."""
        start = len(self._key("").rstrip("/"))
        with naming_location(self.uri(name)):
            times = self._files.times(self._key(name))
            return {path[start:].lstrip("/"): written for path, written in times}

    def folders(self, name: str) -> list[str]:
        """The names of the folders right below `name`, sorted."""
        with naming_location(self.uri(name)):
            return sorted(self._files.folders(self._key(name)))

    def remove(self, name: str) -> None:
        """Remove a file. A missing file is no error."""
        with naming_location(self.uri(name)):
            self._files.remove(self._key(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that is in it."""
        with naming_location(self.uri(name)):
            self._files.remove_folder(self._key(name))

    @cached_property
    def _files(self) -> DiskFiles | BucketFiles:
        return DiskFiles() if self.bucket is None else BucketFiles(self._s3, self.bucket)

    def _key(self, name: str) -> str:
        """The path of `name`, or its key in the bucket."""
        path = self.path(name)
        return path if self.bucket is None else path[len(self.bucket) :].strip("/")


def _absolute(folder: str) -> str:
    try:
        return str(Path(folder).absolute())
    except OSError as error:
        raise BadSetting(
            f"MAILSLICE_ARTIFACTS={folder!r}: the current folder is gone; allowed is a whole path"
        ) from error


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run: `runs/<duty>/<queue>/<run>/`."""

    artifacts: Artifacts
    duty: str
    queue: str
    run: str

    @property
    def name(self) -> str:
        """The folder, relative to the artifacts location."""
        return f"{queue_folder(self.duty, self.queue)}/{self.run}"

    @property
    def uri(self) -> str:
        """The folder, for people."""
        return self.artifacts.uri(self.name)

    def file(self, name: str) -> str:
        """A file of the run, relative to the artifacts location."""
        return f"{self.name}/{name}"

    def write_json(self, name: str, value: Mapping[str, object]) -> None:
        """Write a JSON object atomically; times as ISO 8601 UTC, durations in their short form."""
        text = json.dumps(value, indent=1, default=json_value, ensure_ascii=False)
        self.artifacts.write(self.file(name), text.encode() + b"\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON object, or None. Raises PlanRefused for other content, later for a missing key."""
        data = self.artifacts.read(self.file(name))
        if data is None:
            return None
        where = self.artifacts.uri(self.file(name))
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PlanRefused(
                f"{where} is no JSON ({error}): it was edited or cut short; plan again"
            ) from error
        if not isinstance(value, dict):
            raise PlanRefused(
                f"{where} holds {str(value)[:40]!r}: allowed is a JSON object; plan again"
            )
        return _Summary(value, where)


class _Summary(dict[str, Any]):
    """The JSON object of a run's file. A missing key raises PlanRefused: the file is wrong."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        super().__init__(fields)
        self._where = where

    def __missing__(self, key: str) -> Any:
        raise PlanRefused(
            f"{self._where} has no {key!r} any more: it was edited, or another version "
            "wrote it; plan again"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _Summary, (dict(self), self._where)


def queue_folder(duty: str, queue: str) -> str:
    """The folder of all runs of one duty on one queue."""
    return f"runs/{duty}/{file_name(queue)}"


def artifacts(settings: Settings) -> Artifacts:
    """The artifacts location of the settings."""
    return Artifacts(artifacts_of(settings), settings.s3)


def folder_of(request: RunRequest, settings: Settings) -> RunFolder:
    """The folder of the run."""
    return RunFolder(artifacts(settings), request.duty, request.queue, request.run)


def json_value(value: object) -> object:
    """The JSON value of a report field: ISO 8601 UTC with `Z`, durations in their short form."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return format_duration(value)
    return str(value)


def iso(instant: datetime | None) -> str | None:
    """ISO 8601, UTC, `Z`; fractions only where there are any."""
    return None if instant is None else utc_text(instant)
