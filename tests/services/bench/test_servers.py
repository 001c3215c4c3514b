"""S3 servers that a benchmark starts, and S3 that is far away."""

import sys
import time
from datetime import timedelta

import pytest

from mailslice.bench.distance import at_distance
from mailslice.bench.servers import Server
from mailslice.model.errors import StoreUnavailable
from mailslice.stores.blobs.s3_store import S3BlobStore


def test_a_server_that_ends_at_once_is_an_error():
    server = Server("broken", "http://127.0.0.1:1/", (sys.executable, "-c", "raise SystemExit(1)"))
    with pytest.raises(StoreUnavailable, match="broken"), server.running():
        raise AssertionError("it does not run")


def test_a_far_bucket_is_the_same_bucket_a_round_trip_later(fresh, s3):
    near = fresh.settings
    rtt = timedelta(milliseconds=60)
    with at_distance(near, rtt) as far:
        assert far.s3.endpoint != near.s3.endpoint
        blobs = S3BlobStore(far.s3, far.s3.bucket)
        blobs.put("far", b"x" * 300_000)
        began = time.perf_counter()
        assert blobs.get("far") == b"x" * 300_000
        assert time.perf_counter() - began >= rtt.total_seconds()
    assert s3.get_object(Bucket=near.s3.bucket, Key="far")["Body"].read() == b"x" * 300_000


def test_what_is_not_far_is_as_it_was(fresh):
    with at_distance(fresh.settings, timedelta(0)) as settings:
        assert settings == fresh.settings
