"""mailslice's own keyspace: what maintenance and workers must remember. James' tables get no column and no table added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mailslice.model.errors import BadSetting
from mailslice.model.settings import Settings
from mailslice.stores.cassandra.ddl import create_keyspace, create_tables, replication_of, tables_of
from mailslice.stores.cassandra.own.claims import COUNTER_CLAIMS_TABLE, CounterClaim, CounterClaims
from mailslice.stores.cassandra.own.columns import add_missing, raise_gc_grace
from mailslice.stores.cassandra.own.decisions import DECISIONS_TABLE, DecisionRow, Decisions
from mailslice.stores.cassandra.own.delays import DELAYED_MAILS_TABLE, DelayedMail, DelayedMails
from mailslice.stores.cassandra.own.destinations import DESTINATIONS_TABLE, Destinations
from mailslice.stores.cassandra.own.letters import (
    DEAD_LETTER_NOTES_TABLE,
    DeadLetterNote,
    DeadLetterNotes,
)
from mailslice.stores.cassandra.own.locks import LOCKS_TABLE, Locks
from mailslice.stores.cassandra.own.mail_stages import MAIL_STAGES_TABLE, MailStages
from mailslice.stores.cassandra.own.quarantine import (
    QUARANTINE_TABLE,
    QuarantinedMail,
    QuarantineTable,
)
from mailslice.stores.cassandra.own.republished import (
    REPUBLISHED_MAILS_TABLE,
    PublishState,
    Republished,
    RepublishedMails,
)
from mailslice.stores.cassandra.own.runs import RUNS_TABLE, RunRow, Runs
from mailslice.stores.cassandra.own.samples import QUEUE_SAMPLES_TABLE, QueueSample, QueueSamples
from mailslice.stores.cassandra.own.statistics import (
    SLICE_STATISTICS_TABLE,
    SliceStatistic,
    SliceStatistics,
)
from mailslice.stores.cassandra.own.worker_records import (
    WORKER_RECORDS_TABLE,
    InFlightMail,
    WorkerRecord,
    WorkerRecords,
)
from mailslice.stores.cassandra.session import CassandraSession

__all__ = [
    "CounterClaim",
    "CounterClaims",
    "DeadLetterNote",
    "DeadLetterNotes",
    "DecisionRow",
    "Decisions",
    "DelayedMail",
    "DelayedMails",
    "Destinations",
    "InFlightMail",
    "Locks",
    "MailStages",
    "OwnTables",
    "PublishState",
    "QuarantineTable",
    "QuarantinedMail",
    "QueueSample",
    "QueueSamples",
    "Republished",
    "RepublishedMails",
    "RunRow",
    "Runs",
    "SliceStatistic",
    "SliceStatistics",
    "WorkerRecord",
    "WorkerRecords",
    "dead_letter_notes",
    "destinations",
    "existing_delayed_mails",
    "existing_locks",
    "existing_worker_records",
    "locks",
    "own_tables",
    "worker_records",
]

TABLES = {
    "runs": RUNS_TABLE,
    Locks.TABLE: LOCKS_TABLE,
    "delayed_mails": DELAYED_MAILS_TABLE,
    "queue_samples": QUEUE_SAMPLES_TABLE,
    "slice_statistics": SLICE_STATISTICS_TABLE,
    "dead_letter_notes": DEAD_LETTER_NOTES_TABLE,
    "counter_claims": COUNTER_CLAIMS_TABLE,
    "worker_records": WORKER_RECORDS_TABLE,
    "quarantine": QUARANTINE_TABLE,
    "decisions": DECISIONS_TABLE,
    "mail_stages": MAIL_STAGES_TABLE,
    "republished_mails": REPUBLISHED_MAILS_TABLE,
    "destinations": DESTINATIONS_TABLE,
}


@dataclass(frozen=True, slots=True)
class OwnTables:
    """The classes of the own tables, over one session."""

    runs: Runs
    locks: Locks
    delayed_mails: DelayedMails
    queue_samples: QueueSamples
    slice_statistics: SliceStatistics
    dead_letter_notes: DeadLetterNotes
    counter_claims: CounterClaims
    mail_stages: MailStages
    republished_mails: RepublishedMails
    worker_records: WorkerRecords
    quarantine: QuarantineTable
    decisions: Decisions


def own_tables(session: CassandraSession, settings: Settings) -> OwnTables:
    """The own tables; keyspace and tables are created when missing.

    Replication: MAILSLICE_OWN_REPLICATION, else that of James' keyspace, else one copy on a one-node cluster. Raises BadSetting when none of these is there.
    """
    keyspace = _created(session, settings, TABLES)
    return OwnTables(
        Runs(session, keyspace),
        Locks(session, keyspace),
        DelayedMails(session, keyspace),
        QueueSamples(session, keyspace),
        SliceStatistics(session, keyspace),
        DeadLetterNotes(session, keyspace),
        CounterClaims(session, keyspace),
        MailStages(session, keyspace),
        RepublishedMails(session, keyspace),
        WorkerRecords(session, keyspace),
        QuarantineTable(session, keyspace),
        Decisions(session, keyspace),
    )


def worker_records(session: CassandraSession, settings: Settings) -> WorkerRecords:
    """That table alone, created when missing: a worker needs no other, and need not wait for the making of all."""
    wanted = {WorkerRecords.TABLE: TABLES[WorkerRecords.TABLE]}
    return WorkerRecords(session, _created(session, settings, wanted))


def existing_worker_records(session: CassandraSession, settings: Settings) -> WorkerRecords | None:
    """That table alone, or None where no worker ever wrote one: who only looks creates nothing."""
    keyspace = settings.own.keyspace
    if WorkerRecords.TABLE not in tables_of(session, keyspace):
        return None
    add_missing(session, keyspace, {WorkerRecords.TABLE: WORKER_RECORDS_TABLE})
    return WorkerRecords(session, keyspace)


def locks(session: CassandraSession, settings: Settings) -> Locks:
    """That table alone, created when missing."""
    return Locks(session, _created(session, settings, {Locks.TABLE: LOCKS_TABLE}))


def existing_locks(session: CassandraSession, settings: Settings) -> Locks | None:
    """That table alone, or None where nothing was ever locked: who only looks creates nothing."""
    keyspace = settings.own.keyspace
    return Locks(session, keyspace) if Locks.TABLE in tables_of(session, keyspace) else None


def existing_delayed_mails(session: CassandraSession, settings: Settings) -> DelayedMails | None:
    """That table alone, or None where nobody ever delayed a mail: who only looks creates nothing."""
    keyspace = settings.own.keyspace
    if "delayed_mails" not in tables_of(session, keyspace):
        return None
    add_missing(session, keyspace, {"delayed_mails": DELAYED_MAILS_TABLE})
    return DelayedMails(session, keyspace)


def destinations(session: CassandraSession, settings: Settings) -> Destinations:
    """That table alone, created when missing: only who throttles needs it. Its statements are prepared."""
    table = Destinations(
        session, _created(session, settings, {Destinations.TABLE: TABLES[Destinations.TABLE]})
    )
    table.prepare()
    return table


def dead_letter_notes(session: CassandraSession, settings: Settings) -> DeadLetterNotes:
    """That table alone, created when missing: a worker that dead-letters makes no other."""
    wanted = {DeadLetterNotes.TABLE: TABLES[DeadLetterNotes.TABLE]}
    return DeadLetterNotes(session, _created(session, settings, wanted))


def _created(session: CassandraSession, settings: Settings, wanted: Mapping[str, str]) -> str:
    """The name of the own keyspace, once it and those tables are there."""
    keyspace = settings.own.keyspace
    if keyspace.lower() == settings.cassandra.keyspace.lower():
        raise BadSetting(
            f"MAILSLICE_OWN_KEYSPACE={keyspace} is James' keyspace; mailslice's own tables need another"
        )
    create_keyspace(
        session,
        keyspace,
        settings.own.replication or replication_of(session, settings.cassandra.keyspace) or "",
    )
    made = create_tables(session, keyspace, wanted)
    earlier = {name: text for name, text in wanted.items() if name not in made}
    add_missing(session, keyspace, earlier)
    raise_gc_grace(session, keyspace, earlier)
    return keyspace
