"""Content that a real James and mailslice share by its hash, and the garbage collection of both."""

from __future__ import annotations

import time
import uuid
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any

import pytest

from mailslice.model.mail import BlobId
from mailslice.stores import open_stores
from stack.james import james_node
from tests.conftest import Fresh
from tests.services.james.conftest import Shared
from tests.services.james.mails import of_james, of_mailslice

ABSENT = ("mailRepositoryContentV2", "enqueuedMailsV3", "messageV3", "attachmentV2")


def orphan(text: str) -> BlobId:
    """The id of a blob of an early generation that no row names."""
    return BlobId(f"1_1_{urlsafe_b64encode(sha256(text.encode()).digest()).decode()}")


@pytest.fixture
def shared(fresh: Fresh, tmp_path: Any) -> Any:
    changed = fresh.but(
        MAILSLICE_BLOB_STRATEGY="deduplication",
        MAILSLICE_BLOB_ID="generation-aware",
        MAILSLICE_BLOB_GENERATION_DURATION="1s",
        # This James has a mail queue and nothing else.
        MAILSLICE_GC_ABSENT_SOURCES=",".join(ABSENT),
    )
    with james_node(changed.settings, tmp_path / "james") as node:
        queue = f"q{uuid.uuid4().hex[:8]}"
        node.create(queue)
        yield Shared(changed, node, queue)


def test_both_name_the_same_content_alike_and_collect_only_what_neither_needs(
    shared: Shared,
) -> None:
    with open_stores(shared.fresh.settings) as stores:
        shared.james.enqueue(of_james("j-1"), queue=shared.queue)
        shared.enqueue(of_mailslice("m-1"))
        keys = {blob.key for blob in stores.blobs.list()}
        assert len({key.split("_", 2)[2] for key in keys}) == 2, "one header, one body"
        for number in (1, 2):
            stores.blobs.put(orphan(f"orphan {number}"), b"x")
        time.sleep(3)
        words = ("duty", "run", "blob_gc", "--grace", "1s", "--delete-after", "1s")
        for _ in range(2):  # the first run records candidates
            time.sleep(1.1)
            shared.cli(*words, "--max-share", "1", "--keep", "0s")
        assert {blob.key for blob in stores.blobs.list()} == keys
        stores.blobs.put(orphan("orphan 3"), b"x")
        assert shared.james.call("collect_blobs")["result"] == "COMPLETED"
        assert {blob.key for blob in stores.blobs.list()} == keys
    assert shared.names() == (["j-1", "m-1"], ["j-1", "m-1"])
    assert len(shared.james.dequeue(1, queue=shared.queue)) == 1
    assert len(shared.drain(1)) == 1
