"""`mailslice blobs`: content that blob_gc deleted and still keeps."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from mailslice.cli.arguments import DryRun, Limit, Reason, option
from mailslice.cli.command import command, group
from mailslice.cli.output import Output
from mailslice.cli.queue_session import open_stores, record
from mailslice.cli.selection import FilterCommand
from mailslice.duties.blob_gc.trash import NO_COPY, PRESENT, RESTORED, Trash, Trashed
from mailslice.model.batches import batches
from mailslice.model.errors import BadInput, SomeFailed
from mailslice.model.mail import BlobId

app = group("Blobs that blob_gc deleted and keeps for a while in mailslice's own bucket.")

_AT_ONCE = 1000
Run = Annotated[str | None, option("--run RUN", "All blobs that this run of blob_gc deleted.")]


@command(app, "kept")
def list_trashed(out: Output, *, run: Run = None, limit: Limit = None) -> None:
    """Kept copies, soonest to expire first."""
    with open_stores() as stores, Trash(stores.settings) as copies:
        trashed = copies.of_run(run) if stores.own_blobs.bucket_exists() else iter(())
        empty = f"no copy{'' if run is None else f' of run {run}'} is kept"
        out.rows((_as_row(copy) for copy in islice(trashed, limit)), empty=empty)


@command(app, "restore", FilterCommand)
def restore(
    out: Output,
    *,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Keys of blobs, as they were in James' bucket."),
    ] = None,
    run: Run = None,
    dry_run: DryRun = False,
    reason: Reason = None,
) -> None:
    """Put deleted blobs back, by key or all of a run. Existing blobs stay as they are.

    A key without a copy is listed, and the exit code is 1.
    """
    requested = [BlobId(key) for key in dict.fromkeys(keys or ())]
    if bool(requested) == (run is not None):
        raise BadInput("blobs restore: give either keys or --run RUN")
    attempted, counts = 0, Counter[str]()

    def lines() -> Iterator[dict[str, object]]:
        nonlocal attempted
        missing = dict.fromkeys(requested)
        for batch in _copies(copies, requested, run) if exists else iter(()):
            attempted += len(batch)
            status = copies.restore(batch, dry_run=dry_run)
            counts.update(status[copy.key] for copy in batch)
            for copy in batch:
                missing.pop(copy.key, None)
                yield {**_as_row(copy), "status": status[copy.key]}
        for key in missing:
            counts[NO_COPY] += 1
            yield {"key": key, "run": None, "bytes": None, "keptUntil": None, "status": NO_COPY}

    with open_stores() as stores, Trash(stores.settings) as copies:
        exists = stores.own_blobs.bucket_exists()
        try:
            out.rows(lines(), empty=f"no copy of run {run} is kept")
        finally:
            if not dry_run and (attempted or counts):
                facts = {"run": run, "keys": requested, "begun": attempted, "counts": counts}
                record(stores.settings, "blobs restore", None, reason, **facts)
    _raise_unless_restored(counts, run)


def _copies(copies: Trash, requested: list[BlobId], run: str | None) -> Iterator[list[Trashed]]:
    if run is None:
        return iter([list(copies.of_keys(requested).values())])
    return batches(copies.of_run(run), _AT_ONCE)


def _raise_unless_restored(counts: dict[str, int], run: str | None) -> None:
    bad = {status: count for status, count in counts.items() if status not in {PRESENT, RESTORED}}
    if run is not None and not counts:
        raise BadInput(
            f"--run {run!r}: no copy of this run is kept; `mailslice blobs kept` lists all"
        )
    if bad:
        raise SomeFailed(
            f"{sum(bad.values())} of {sum(counts.values())} blobs were not put back: "
            f"{'; '.join(f'{count} {why}' for why, count in bad.items())}"
        )


def _as_row(copy: Trashed) -> dict[str, object]:
    return {"key": copy.key, "run": copy.run, "bytes": copy.size, "keptUntil": copy.expires}
