"""Artifacts in a bucket: the contract, more than a page of them, and buckets that are missing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import SecretStr

from mailslice.duties.blob_gc.plan import CopyToRestore
from mailslice.engine.errors import translated_errors
from mailslice.engine.frames import InProcess
from mailslice.engine.plan_rows import plan_rows
from mailslice.maintenance.artifacts import Artifacts
from mailslice.maintenance.row_file import schema_of, stream_rows, write_rows
from mailslice.model.errors import BadSetting, PlanRefused, StoreUnavailable
from mailslice.stores.blobs.s3_store import S3BlobStore
from tests.contracts.artifacts import ArtifactsContract


@pytest.fixture
def where(fresh) -> Callable[[str], Artifacts]:
    bucket = fresh.settings.own.bucket
    return lambda name: Artifacts(f"s3a://{bucket}/some/{name}", fresh.settings.s3)


class TestInABucket(ArtifactsContract):
    def test_more_than_a_page_is_listed_and_removed(self, location: Artifacts) -> None:
        names = [f"runs/{number:04}/f" for number in range(1003)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda name: location.write(name, b"x"), names))
        assert location.files("runs") == names
        assert location.folders("runs") == [name.split("/")[1] for name in names]
        location.remove_folder("runs")
        assert location.files("") == []

    def test_marks_of_folders_are_no_files(self, fresh, location: Artifacts) -> None:
        location.write("runs/r/f", b"x")
        with S3BlobStore(fresh.settings.s3, fresh.settings.own.bucket) as bucket:
            bucket.client.put_object(Bucket=bucket.bucket, Key="some/artifacts/runs/r/", Body=b"")
        assert location.files("runs") == ["runs/r/f"]
        location.remove_folder("runs")
        assert location.folders("runs") == []


def test_a_missing_bucket_is_empty_and_made_by_the_first_write(fresh) -> None:
    bucket = f"{fresh.settings.own.bucket}-new"
    location = Artifacts(f"s3a://{bucket}", fresh.settings.s3)
    with S3BlobStore(fresh.settings.s3, bucket) as store:
        assert (location.read("f"), location.files(""), location.folders("")) == (None, [], [])
        location.remove("f")
        location.remove_folder("d")
        assert not store.bucket_exists(), "reading made a bucket"
        location.write("f", b"x")
        assert location.files("") == ["f"]
        location.remove("f")
        store.client.delete_bucket(Bucket=bucket)


def test_a_server_that_is_away_and_a_wrong_key_are_named(fresh) -> None:
    s3 = fresh.settings.s3
    away = s3.model_copy(update={"endpoint": "http://127.0.0.1:9"})
    with pytest.raises(StoreUnavailable, match=r"artifacts s3a://b/x/f: S3 at 127\.0\.0\.1:9"):
        Artifacts("s3a://b/x", away).read("f")
    wrong = s3.model_copy(update={"secret_key": SecretStr("other")})
    with pytest.raises(BadSetting, match="MAILSLICE_S3_SECRET_KEY"):
        Artifacts(f"s3a://{fresh.settings.own.bucket}", wrong).write("f", b"")


@pytest.mark.parametrize("is_there", [True, False])
def test_rows_that_s3_does_not_answer_for_are_not_taken_for_changed_ones(fresh, is_there) -> None:
    s3, prefix = fresh.settings.s3, f"s3a://{fresh.settings.own.bucket}/rows"
    location, rows = Artifacts(prefix, s3), [CopyToRestore("k")]
    location.folder("run/plan")
    file = write_rows(location, "run", "rows.parquet", rows, CopyToRestore)
    if is_there:
        location = Artifacts(prefix, s3.model_copy(update={"endpoint": "http://127.0.0.1:9"}))
        with (
            pytest.raises(StoreUnavailable, match="AWS Error NETWORK_CONNECTION"),
            translated_errors(),
        ):
            write_rows(location, "run", "more.parquet", rows, CopyToRestore)
    else:
        location.remove("run/rows.parquet")
    error = StoreUnavailable if is_there else PlanRefused
    with pytest.raises(error):
        list(stream_rows(location, "run", file, CopyToRestore))
    with pytest.raises(error):
        plan_rows(InProcess(), location, ["run/rows.parquet"], schema_of(CopyToRestore))
