"""James' mailbox tables, as its DDL creates them (own text, equal in effect), and mailboxes that
tests fill row by row, as James does.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from mailslice.duties.counter_repair.duty import CounterRepair
from mailslice.stores import Stores
from tests.services.duties.counter_repair.in_process import plain_survey
from tests.services.duties.world import World, in_process

_FLAGS = (
    "flaganswered",
    "flagdeleted",
    "flagdraft",
    "flagflagged",
    "flagrecent",
    "flagseen",
    "flaguser",
)
_MESSAGE = (
    "bodystartoctet int, flaganswered boolean, flagdeleted boolean, flagdraft boolean, "
    "flagflagged boolean, flagrecent boolean, flagseen boolean, "
    "flaguser boolean, fullcontentoctets bigint, headercontent text, internaldate timestamp, "
    "modseq bigint, save_date timestamp, threadid timeuuid, "
    "userflags set<text>"
)
DDL = (
    "CREATE TYPE {ks}.mailboxbase (namespace text, user text)",
    (
        "CREATE TABLE {ks}.mailbox (id timeuuid PRIMARY KEY, mailboxbase frozen<mailboxbase>, "
        "name text, uidvalidity bigint)"
    ),
    (
        "CREATE TABLE {ks}.mailboxcounters (mailboxid timeuuid PRIMARY KEY, count counter, unseen"
        " counter)"
    ),
    "CREATE TABLE {ks}.modseq (mailboxid timeuuid PRIMARY KEY, nextmodseq bigint)",
    (
        f"CREATE TABLE {{ks}}.imapuidtable (messageid timeuuid, mailboxid timeuuid, uid bigint, "
        f"{_MESSAGE}, PRIMARY KEY (messageid, mailboxid, uid))"
    ),
    (
        f"CREATE TABLE {{ks}}.messageidtable (mailboxid timeuuid, uid bigint, messageid timeuuid, "
        f"{_MESSAGE}, PRIMARY KEY (mailboxid, uid))"
    ),
)
BOTH = ("imapuidtable", "messageidtable")


def create_mailbox_tables(stores: Stores) -> None:
    """Creates the tables, as James does at its first start."""
    for statement in DDL:
        stores.cassandra.execute(statement.format(ks=stores.settings.cassandra.keyspace))


def timeuuid() -> UUID:
    """A new id as James makes it: a UUID of version 1 with the present time."""
    return uuid.uuid1(node=uuid.uuid4().int >> 80, clock_seq=uuid.uuid4().int % (1 << 14))


@dataclass
class Mailboxes(World):
    """A keyspace with James' mailbox tables."""

    duty = "counter_repair"
    defaults = {"settle": "1ms"}  # noqa: RUF012
    locks = ("counter_repair/-",)

    def execute(self, cql: str, *params: object) -> list:
        return self.stores.cassandra.execute(
            cql.replace("{ks}", self.settings.cassandra.keyspace), params
        )

    def mailbox(
        self,
        user: str = "alice@example.com",
        *,
        name: str = "INBOX",
        messages: int = 0,
        seen: int = 0,
        add: tuple[int, int] = (0, 0),
    ) -> UUID:
        """Inserts a mailbox with messages, `seen` of them seen. Its counters are wrong by `add`."""
        mailbox = timeuuid()
        self.execute(
            "INSERT INTO {ks}.mailbox (id, mailboxbase, name, uidvalidity) VALUES (%s, "
            "{namespace: '#private', user: %s}, %s, 1)",
            mailbox,
            user,
            name,
        )
        for uid in range(1, messages + 1):
            self.message(mailbox, uid, seen=uid <= seen)
        if messages or any(add):
            self.add(mailbox, messages + add[0], messages - seen + add[1])
        return mailbox

    def message(
        self,
        mailbox: UUID,
        uid: int,
        *,
        message: UUID | None = None,
        seen: bool = False,
        modseq: int = 0,
        flags: set | None = None,
        tables: tuple = BOTH,
    ) -> UUID:
        """Inserts the rows of one message, without changing counters."""
        message = message or timeuuid()
        for table in tables:
            columns = (
                f"messageid, mailboxid, uid, modseq, {', '.join(_FLAGS)}, userflags, "
                "bodystartoctet, fullcontentoctets, threadid"
            )
            values = [
                message,
                mailbox,
                uid,
                modseq or uid,
                *(name == "flagseen" and seen for name in _FLAGS),
                flags,
                10,
                100,
                message,
            ]
            marks = ", ".join(["%s"] * len(values))
            self.execute(f"INSERT INTO {{ks}}.{table} ({columns}) VALUES ({marks})", *values)
        return message

    def late_flags(self, mailbox: UUID, uid: int) -> None:
        """Changes flags as James does when the message's projection has been deleted meanwhile.

        Leaves a row with no other columns than these flags.
        """
        self.execute(
            "UPDATE {ks}.messageidtable SET flagseen = false, flagflagged = true, modseq = 99"
            " WHERE mailboxid = %s AND uid = %s",
            mailbox,
            uid,
        )

    def give_modseq(self, mailbox: UUID, modseq: int) -> None:
        """Sets the highest modSeq, as James does before it adds a message or changes flags."""
        self.execute(
            "INSERT INTO {ks}.modseq (mailboxid, nextmodseq) VALUES (%s, %s)", mailbox, modseq
        )

    def remove(self, mailbox: UUID, uid: int, message: UUID, tables: tuple = BOTH) -> None:
        """Deletes rows of a message, without changing counters."""
        if "imapuidtable" in tables:
            self.execute(
                "DELETE FROM {ks}.imapuidtable WHERE messageid = %s AND mailboxid = %s AND "
                "uid = %s",
                message,
                mailbox,
                uid,
            )
        if "messageidtable" in tables:
            self.execute(
                "DELETE FROM {ks}.messageidtable WHERE mailboxid = %s AND uid = %s", mailbox, uid
            )

    def add(self, mailbox: UUID, count: int, unseen: int) -> None:
        """Adds to the counters, as James does."""
        self.execute(
            "UPDATE {ks}.mailboxcounters SET count = count + %s, unseen = unseen + %s WHERE "
            "mailboxid = %s",
            count,
            unseen,
            mailbox,
        )

    def counters(self, mailbox: UUID) -> tuple[int, int] | None:
        """(count, unseen) of the counter row; None without a row."""
        rows = self.execute(
            "SELECT count, unseen FROM {ks}.mailboxcounters WHERE mailboxid = %s", mailbox
        )
        return rows[0] if rows else None

    def projection(self, mailbox: UUID) -> dict[int, tuple]:
        """uid -> (message, seen, modSeq, user flags)."""
        rows = self.execute(
            "SELECT uid, messageid, flagseen, modseq, userflags FROM {ks}.messageidtable "
            "WHERE mailboxid = %s",
            mailbox,
        )
        return {row[0]: (row[1], row[2], row[3], set(row[4] or ())) for row in rows}

    def using(self, **parts: Any) -> Mailboxes:
        """A copy of this world with other parts of the duty."""
        duty = CounterRepair(**{"survey": plain_survey, **parts})
        return replace(self, tools=in_process(logic=duty))
