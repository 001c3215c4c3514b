"""Scans by Spark workers: references of all sources, planned blobs, copies in the trash."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from mailslice.duties.blob_gc.sources import ReferenceSource
from mailslice.duties.blob_gc.trash import TRASH_PREFIX, Trash
from mailslice.engine.dataset import KEY, REFERENCE, Dataset, RowBatch, Summary, read_once
from mailslice.engine.frames import Session
from mailslice.engine.row_files import Location, RowGroup, read_groups
from mailslice.model.settings import Settings

_PLANNED = {KEY: "string", "size": "long", "modified_s": "long", "since_ms": "long"}
_FIRST = ("deadLetters", "ownBucket", "own.", "mailRepositoryContentV2")
"""Mails move from these sources to others. They are read first, so no moving mail is missed."""


def read_references(
    frames: ExitStack, session: Session, settings: Settings, sources: Sequence[ReferenceSource]
) -> list[Dataset]:
    """All references. Raises if a part of a source cannot be read.

    Each part of a source has one summary, `{"source", "part", "rows", "references"}`.
    """
    first = [source for source in sources if source.name.startswith(_FIRST)]
    rest = [source for source in sources if source not in first]
    return [frames.enter_context(_read(session, settings, part)) for part in (first, rest)]


def _read(session: Session, settings: Settings, sources: Sequence[ReferenceSource]) -> Dataset:
    def work(batches: Iterator[Sequence[tuple[int, int]]]) -> Iterator[RowBatch | Summary]:
        for batch in batches:
            for number in sorted({number for number, _ in batch}):
                parts = [part for source_number, part in batch if source_number == number]
                counts = {part: [0, 0] for part in parts}
                for part, rows, ids in sources[number].scan(settings, parts):
                    counts[part][0] += rows
                    counts[part][1] += len(ids)
                    if ids:
                        yield RowBatch({REFERENCE: ids})
                # Only here every part has been read to its end.
                for part, (rows, references) in counts.items():
                    yield {
                        "source": sources[number].name,
                        "part": part,
                        "rows": rows,
                        "references": references,
                    }

    keys = [(number, part) for number, source in enumerate(sources) for part in range(source.parts)]
    return read_once(session, keys, work, {REFERENCE: "string"})


def read_planned(
    session: Session,
    location: Location,
    folder: str,
    groups: Sequence[RowGroup],
    recorded_ms: int | None = None,
) -> Dataset:
    """The blobs of these groups. A missing `since_ms` becomes `recorded_ms`. Raises PlanRefused."""

    def work(batches: Iterator[Sequence[RowGroup]]) -> Iterator[RowBatch | Summary]:
        for batch in batches:
            for group, table in read_groups(location, folder, batch):
                rows = {name: table.column(name).to_pylist() for name in _PLANNED}
                rows["since_ms"] = [recorded_ms if ms is None else ms for ms in rows["since_ms"]]
                yield RowBatch(rows)
                yield {"rows": group.rows}

    return read_once(session, groups, work, _PLANNED)


def read_copies(session: Session, settings: Settings, folders: Sequence[str]) -> Dataset:
    """Copies below these folders: `key` is the blob's object key, `path` the copy's."""

    def work(batches: Iterator[Sequence[str]]) -> Iterator[RowBatch | Summary]:
        with Trash(settings) as trash:
            for folder in (folder for batch in batches for folder in batch):
                copies = 0
                for page in trash.pages([folder]):
                    copies += len(page)
                    keys, paths = [copy.key for copy in page], [copy.path for copy in page]
                    if page:
                        yield RowBatch({KEY: keys, "path": paths})
                yield {"folder": folder.removeprefix(TRASH_PREFIX), "copies": copies}

    return read_once(session, folders, work, {KEY: "string", "path": "string"})
