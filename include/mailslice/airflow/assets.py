"""Assets that other DAGs wait for: of a duty, and of a duty on one queue.

    from mailslice.airflow.assets import queue_asset

    @dag(schedule=[queue_asset("queue_cleanup", "spool")])

The asset of a duty has an event for each queue. The asset of a queue has an event when a run on it
ended well and was not dry. `extra` of each event has duty, queue, run, status and counts.
"""

from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

ALL_QUEUES = "all"
_PATHS = {
    "blob_gc": "blobs/gc",
    "counter_repair": "mailboxes/counters",
    "dead_letters": "queue/dead-letters",
    "migrate_v3_to_v4": "queue/migration",
    "queue_audit": "queue/audit",
    "queue_cleanup": "queue/cleanup",
    "queue_size": "queue/size",
    "reclaim": "cassandra/reclaim",
    "republish_lost": "queue/republished",
    "stuck_mails": "queue/stuck",
}


def duty_asset(duty: str, prefix: str = "") -> Asset:
    """The asset of a duty; `prefix` is that of the DAG's id."""
    return Asset(f"{prefix}{duty}", uri=f"mailslice://{prefix}{_PATHS.get(duty, f'duty/{duty}')}")


def queue_asset(duty: str, queue: str, prefix: str = "") -> Asset:
    whole, name = duty_asset(duty, prefix), quote(queue, safe="")
    return Asset(f"{whole.name}/queue/{name}", uri=f"{whole.uri}/queue/{name}")


def run_asset(duty: str, prefix: str = "") -> Asset:
    """The asset of whole runs of a duty: one event when no queue has failed."""
    whole = duty_asset(duty, prefix)
    return Asset(f"{whole.name}/{ALL_QUEUES}", uri=f"{whole.uri}/{ALL_QUEUES}")


def queues_alias(duty: str, prefix: str = "") -> AssetAlias:
    """An alias for the queues of a duty: their names are not known when DAG files are parsed."""
    return AssetAlias(f"{prefix}{duty} queues")
