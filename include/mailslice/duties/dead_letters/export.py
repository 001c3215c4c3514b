"""Exports undecodable letters to files before they leave the queue.

Body and headers are below `dead-letters/QUEUE/`, named by their content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from mailslice.maintenance.artifacts import Artifacts, iso, plain
from mailslice.maintenance.context import StepContext
from mailslice.model.errors import StoreUnavailable
from mailslice.model.names import file_name
from mailslice.stores.rabbitmq.checkout import CheckedOutMessage


def folder_of(queue: str) -> str:
    """The folder of a queue's exports, relative to the artifacts location.

    Not in a run's folder, which is pruned.
    """
    return f"dead-letters/{file_name(queue)}"


def export_letter(context: StepContext, message: CheckedOutMessage, key: str) -> str:
    """Write body and headers, and read the body back; the file's name.

    Idempotent: after a crash before the ack the same file is written again.
    """
    artifacts, digest = context.folder.artifacts, hashlib.sha256(message.body).hexdigest()
    name = f"{folder_of(context.queue)}/{digest[:32]}.body"
    details = {
        "key": key,
        "sha256": digest,
        "run": context.request.run,
        "queue": context.queue,
        "timestamp": iso(message.timestamp),
        "headers": jsonable(message.headers),
    }
    artifacts.write(name, message.body)
    artifacts.write(
        f"{folder_of(context.queue)}/{digest[:32]}-{key[:12]}.json",
        json.dumps(details, default=plain, indent=1).encode() + b"\n",
    )
    if not is_exported(artifacts, name):
        raise StoreUnavailable(
            f"the export {artifacts.uri(name)} does not read back as it was written: its letter stays"
        )
    return name


def is_exported(artifacts: Artifacts, name: str) -> bool:
    """Whether the file is there and holds what its name says."""
    data = artifacts.read(name)
    return data is not None and hashlib.sha256(data).hexdigest().startswith(
        name.rpartition("/")[2].partition(".")[0]
    )


def jsonable(value: object) -> object:
    """A header value as JSON values.

    Clients send bytes, also as names (where they wrote no UTF-8), in tables and arrays.
    """
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case Mapping():
            return {str(jsonable(name)): jsonable(item) for name, item in value.items()}
        case list():
            return [jsonable(item) for item in value]
        case _:
            return value
