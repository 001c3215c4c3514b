"""The three stores behind one object, each connected, and its driver imported, at first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from mailslice.model.mail import QueueName
from mailslice.model.settings import Settings

if TYPE_CHECKING:
    from mailslice.stores.blobs.store import BlobStore
    from mailslice.stores.cassandra.mailboxes import MailboxTables
    from mailslice.stores.cassandra.own import (
        OwnTables,
        Runs,
        SliceStatistic,
        WorkerRecord,
    )
    from mailslice.stores.cassandra.packed import PackedReader
    from mailslice.stores.cassandra.session import CassandraSession
    from mailslice.stores.cassandra.tables import QueueTables
    from mailslice.stores.postal.databases import PostalDatabases
    from mailslice.stores.rabbitmq.management import Management
    from mailslice.stores.rabbitmq.topology import Topology


class Stores:
    """What the settings name, as a context manager; one thread opens, many use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened. May be called twice."""
        session = self.__dict__.pop("cassandra", None)
        for name in ("tables", "mailboxes", "own"):
            self.__dict__.pop(name, None)
        if session is not None:
            session.close()
        postal = self.__dict__.pop("postal", None)
        if postal is not None:
            postal.close()

    @cached_property
    def cassandra(self) -> CassandraSession:
        """The session of the view."""
        from mailslice.stores.cassandra.session import CassandraSession

        return CassandraSession(self.settings.cassandra)

    @cached_property
    def tables(self) -> QueueTables:
        """James' tables."""
        from mailslice.stores.cassandra.tables import QueueTables

        return QueueTables(self.cassandra, self.settings)

    @cached_property
    def mailboxes(self) -> MailboxTables:
        """James' tables of mailboxes and their counters."""
        from mailslice.stores.cassandra.mailboxes import MailboxTables

        return MailboxTables(self.cassandra)

    @property
    def packed(self) -> PackedReader:
        """Rows as bytes, for scans."""
        return self.cassandra.packed

    @cached_property
    def own(self) -> OwnTables:
        """Mailslice's own tables, created when missing."""
        from mailslice.stores.cassandra.own import OwnTables

        return OwnTables(self.cassandra, self.settings)

    def existing_runs(self) -> Runs | None:
        """The ledger's table, for looking: None where no run was ever written. Creates nothing."""
        from mailslice.stores.cassandra.own import Runs

        return Runs.existing(self.cassandra, self.settings)

    def remembered_slices(self, queue: QueueName) -> list[SliceStatistic]:
        """Statistics of the queue's closed slices, by cleanups; none without a table."""
        from mailslice.stores.cassandra.own import SliceStatistics

        table = SliceStatistics.existing(self.cassandra, self.settings)
        return [] if table is None else list(table.list(queue))

    def worker_records(self, queue: QueueName) -> list[WorkerRecord]:
        """Records of the queue's workers, ended ones too; none where there is no table yet."""
        from mailslice.stores.cassandra.own import WorkerRecords

        table = WorkerRecords.existing(self.cassandra, self.settings)
        return [] if table is None else table.list(queue)

    @cached_property
    def postal(self) -> PostalDatabases:
        """Postal's databases. Raises BadSetting where MAILSLICE_POSTAL_URL is not set."""
        from mailslice.stores.postal.databases import PostalDatabases

        return PostalDatabases(self.settings.postal)

    @cached_property
    def rabbitmq(self) -> Topology:
        """Queues and exchanges of the broker."""
        from mailslice.stores.rabbitmq.topology import Topology

        return Topology(self.settings)

    @cached_property
    def management(self) -> Management:
        """The broker's management API."""
        from mailslice.stores.rabbitmq.management import Management

        return Management(self.settings.rabbitmq)

    @cached_property
    def blobs(self) -> BlobStore:
        """James' bucket."""
        from mailslice.stores.blobs.opening import open_blob_store

        return open_blob_store(self.settings.s3, self.settings.s3.bucket)

    @cached_property
    def own_blobs(self) -> BlobStore:
        """Mailslice's own bucket."""
        from mailslice.stores.blobs.opening import open_blob_store

        return open_blob_store(self.settings.s3, self.settings.own.bucket)


def open_stores(settings: Settings) -> Stores:
    """The stores of the settings; nothing is connected yet. Use as a context manager."""
    return Stores(settings)
