"""All stores behind one object. Each is connected, and its driver imported, at its first use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from mailslice.model.batches import batches
from mailslice.model.closing import Closing
from mailslice.model.errors import BadSetting
from mailslice.model.mail import EnqueueId, QueueName, ViewRow
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    from mailslice.stores.blobs.store import BlobStore
    from mailslice.stores.cassandra.mailboxes import MailboxTables
    from mailslice.stores.cassandra.own import DelayState, OwnTables, SliceStatistic, WorkerRecord
    from mailslice.stores.cassandra.session import CassandraSession
    from mailslice.stores.cassandra.tables import QueueTables
    from mailslice.stores.mariadb.own import OwnDatabase
    from mailslice.stores.own import OwnRecords
    from mailslice.stores.own.records import Records, TableShape
    from mailslice.stores.own.runs import Runs
    from mailslice.stores.postal.databases import PostalDatabases
    from mailslice.stores.rabbitmq.management import Management
    from mailslice.stores.rabbitmq.topology import Topology


class Stores(Closing):
    """The stores that the settings name; a context manager. One thread opens it, many use it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def close(self) -> None:
        """Closes the stores that were opened. May be called twice."""
        for name in ("tables", "mailboxes", "own", "records"):
            self.__dict__.pop(name, None)
        for name in ("blobs", "own_blobs", "cassandra", "own_database", "postal"):
            if (store := self.__dict__.pop(name, None)) is not None:
                store.close()

    @cached_property
    def cassandra(self) -> CassandraSession:
        self._require_james()
        from mailslice.stores.cassandra.session import CassandraSession

        return CassandraSession(self.settings.cassandra)

    @cached_property
    def tables(self) -> QueueTables:
        from mailslice.stores.cassandra.tables import QueueTables

        return QueueTables(self.cassandra, self.settings)

    @cached_property
    def mailboxes(self) -> MailboxTables:
        from mailslice.stores.cassandra.mailboxes import MailboxTables

        return MailboxTables(self.cassandra)

    @cached_property
    def own(self) -> OwnTables:
        """Mailslice's own tables in Cassandra, created when missing."""
        from mailslice.stores.cassandra.own import OwnTables

        return OwnTables(self.cassandra, self.settings)

    @cached_property
    def own_database(self) -> OwnDatabase:
        """The MariaDB database that holds the records in a deployment with Postal alone."""
        from mailslice.stores.mariadb.own import OwnDatabase

        return OwnDatabase(self.settings)

    @cached_property
    def records(self) -> OwnRecords:
        """The own tables of every deployment, with Cassandra or without; created when missing."""
        if has_cassandra(self.settings):
            return self.own
        return self.own_database.created()

    def _require_james(self) -> None:
        if not has_cassandra(self.settings):
            raise BadSetting(
                f"MAILSLICE_POSTAL_URL ({self.settings.where('MAILSLICE_POSTAL_URL')}) names a "
                "Postal, and MAILSLICE_CASSANDRA_CONTACT_POINTS names no Cassandra: commands and "
                "duties about the queues of James need it"
            )

    def prune_records(self) -> int:
        """Deletes expired own rows of MariaDB; returns how many. Cassandra expires rows itself."""
        return 0 if has_cassandra(self.settings) else self.own_database.prune()

    def existing_records(self, shape: TableShape) -> Records | None:
        """The own table of this shape, to read it. None: it was never created. Creates nothing."""
        if not has_cassandra(self.settings):
            return self.own_database.existing(shape)
        from mailslice.stores.cassandra.own.records import RECORDS

        return RECORDS[shape.name].existing(self.cassandra, self.settings)

    def existing_runs(self) -> Runs | None:
        """The ledger's table, to read it. None: no run was ever written. Creates nothing."""
        from mailslice.stores.own.runs import RUNS, Runs

        records = self.existing_records(RUNS)
        return None if records is None else Runs(records)

    def remembered_slices(self, queue: QueueName) -> list[SliceStatistic]:
        """Statistics that cleanups kept of the queue's closed slices; empty without a table."""
        from mailslice.stores.cassandra.own import SliceStatistics

        table = SliceStatistics.existing(self.cassandra, self.settings)
        return [] if table is None else list(table.list(queue))

    def delay_states(
        self, queue: QueueName, ids: Collection[EnqueueId]
    ) -> Mapping[EnqueueId, DelayState]:
        """Delays and attempts of these mails, as far as they have any; empty without a table."""
        from mailslice.stores.cassandra.own import DelayedMails

        table = DelayedMails.existing(self.cassandra, self.settings) if ids else None
        return {} if table is None else table.states(queue, ids)

    def with_delays(
        self, queue: QueueName, rows: Iterable[ViewRow]
    ) -> Iterator[tuple[ViewRow, DelayState]]:
        """The rows, each with its `delay_states`, which are read for 2,000 rows at a time."""
        from mailslice.stores.cassandra.own import DelayState

        for batch in batches(rows, 2000):
            states = self.delay_states(queue, [row.enqueue_id for row in batch])
            yield from ((row, states.get(row.enqueue_id, DelayState())) for row in batch)

    def worker_records(self, queue: QueueName) -> list[WorkerRecord]:
        """Records of the queue's workers, ended ones too; empty without a table."""
        from mailslice.stores.cassandra.own import WorkerRecords

        table = WorkerRecords.existing(self.cassandra, self.settings)
        return [] if table is None else table.list(queue)

    def workers_of(self, queues: Iterable[QueueName]) -> Mapping[QueueName, Sequence[WorkerRecord]]:
        """`worker_records` of several queues, in few requests. Queues without one are absent."""
        from mailslice.stores.cassandra.own import WorkerRecords

        table = WorkerRecords.existing(self.cassandra, self.settings)
        return {} if table is None else table.by_queue(queues)

    @cached_property
    def postal(self) -> PostalDatabases:
        """Postal's databases. Raises BadSetting where MAILSLICE_POSTAL_URL is not set."""
        from mailslice.stores.postal.databases import PostalDatabases

        return PostalDatabases(self.settings.postal)

    @cached_property
    def rabbitmq(self) -> Topology:
        self._require_james()
        from mailslice.stores.rabbitmq.topology import Topology

        return Topology(self.settings)

    @cached_property
    def management(self) -> Management:
        self._require_james()
        from mailslice.stores.rabbitmq.management import Management

        return Management(self.settings.rabbitmq)

    @cached_property
    def blobs(self) -> BlobStore:
        self._require_james()
        from mailslice.stores.blobs.factory import open_blob_store

        return open_blob_store(self.settings.s3, self.settings.s3.bucket)

    @cached_property
    def own_blobs(self) -> BlobStore:
        """Mailslice's own bucket."""
        self._require_james()
        from mailslice.stores.blobs.factory import open_blob_store

        return open_blob_store(self.settings.s3, self.settings.own.bucket)


def has_cassandra(settings: Settings) -> bool:
    """Whether the deployment has Cassandra. It has, unless its settings name Postal alone."""
    return settings.postal.url is None or "contact_points" in settings.cassandra.model_fields_set


def open_stores(settings: Settings) -> Stores:
    """The stores of the settings; nothing is connected yet. Use as a context manager."""
    return Stores(settings)
