"""Tables in mailslice's own keyspace. mailslice adds no columns to James' tables."""

from mailslice.model.settings import Settings
from mailslice.stores.cassandra.own.decisions import DecisionRow, Decisions
from mailslice.stores.cassandra.own.delays import DelayedMail, DelayedMails, DelayState
from mailslice.stores.cassandra.own.deletions import (
    DeletedBatch,
    Deletions,
    UndeletedMail,
    UndeletedMails,
    UndeleteStep,
)
from mailslice.stores.cassandra.own.duty_notes import (
    CounterClaim,
    CounterClaims,
    QueueSample,
    QueueSamples,
    SliceStatistic,
    SliceStatistics,
)
from mailslice.stores.cassandra.own.holds import Destinations, Holds
from mailslice.stores.cassandra.own.mail_stages import MailStages
from mailslice.stores.cassandra.own.quarantine import MovingMails, QuarantinedMail, QuarantineTable
from mailslice.stores.cassandra.own.records import RECORDS
from mailslice.stores.cassandra.own.republished import (
    DeadLetterNote,
    DeadLetterNotes,
    PublishState,
    Republished,
    RepublishedMails,
)
from mailslice.stores.cassandra.own.table import TABLES, create
from mailslice.stores.cassandra.own.worker_records import InFlightMail, WorkerRecord, WorkerRecords
from mailslice.stores.cassandra.session import CassandraSession
from mailslice.stores.own import OwnRecords


class OwnTables(OwnRecords):
    """The own tables of one session, created when missing. Raises the errors of `table.create`."""

    def __init__(self, session: CassandraSession, settings: Settings) -> None:
        keyspace = create(session, settings, TABLES.values())
        super().__init__(lambda shape: RECORDS[shape.name](session, keyspace))
        self.delayed_mails = DelayedMails(session, keyspace)
        self.queue_samples = QueueSamples(session, keyspace)
        self.slice_statistics = SliceStatistics(session, keyspace)
        self.dead_letter_notes = DeadLetterNotes(session, keyspace)
        self.counter_claims = CounterClaims(session, keyspace)
        self.mail_stages = MailStages(session, keyspace)
        self.republished_mails = RepublishedMails(session, keyspace)
        self.worker_records = WorkerRecords(session, keyspace)
        self.quarantine = QuarantineTable(session, keyspace)
        self.moving_mails = MovingMails(session, keyspace)
        self.decisions = Decisions(session, keyspace)
        self.deletions = Deletions(session, keyspace)
        self.undeleted_mails = UndeletedMails(session, keyspace)
        self.holds = Holds(session, keyspace)
