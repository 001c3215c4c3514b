"""Whether the content of mails is still there: looked up beside each other, never loaded. A content that is lost is said, and the listing goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mailslice.model.mail import BlobId
    from mailslice.stores import Stores

PRESENT, LOST = "present", "content lost"
_AT_ONCE = 16


def with_content(stores: Stores, rows: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    """The rows, in their order, with `content`: present, or content lost when the header or the body is gone. Two requests of S3 a mail, 16 at once."""

    def state(row: dict[str, object]) -> str:
        ids: tuple[BlobId, BlobId] = (row["headerBlobId"], row["bodyBlobId"])  # type: ignore[assignment]
        return PRESENT if all(stores.blobs.exists(each) for each in ids) else LOST

    _ = stores.blobs.client  # made once, before threads share it
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        asked: deque[tuple[dict[str, object], Future[str]]] = deque()
        for row in rows:
            asked.append((row, threads.submit(state, row)))
            if len(asked) >= 2 * _AT_ONCE:
                yield _answered(*asked.popleft())
        while asked:
            yield _answered(*asked.popleft())


def _answered(row: dict[str, object], state: Future[str]) -> dict[str, object]:
    return {**row, "content": state.result()}
