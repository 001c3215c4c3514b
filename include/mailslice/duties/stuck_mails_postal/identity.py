"""Ties mailslice's own tables to one Postal. Another Postal has messages with the same ids.

The first writer stores its Postal's name; another Postal is refused. The name is that of the main
database, with the host and port that its MariaDB reports, because a URL may have an alias or a
tunnel. Host and port change when MariaDB moves, is one of a cluster, or is a new container. Own
tables in the same MariaDB move with it. For other own tables, delivery records of closings prove
that it is the same Postal: no other has them.
"""

from mailslice.duties.stuck_mails_postal.quarantined import look_up
from mailslice.model.errors import ConfigurationDiffers
from mailslice.stores import Stores, has_cassandra
from mailslice.stores.mariadb.own import own_url
from mailslice.stores.own.locks import LOCKS, Locks
from mailslice.stores.own.postal_quarantine import (
    POSTAL_QUARANTINE,
    PostalEntry,
    PostalQuarantineTable,
)

NAME = "postal identity"
"""The row of the table `locks` that stores the name."""
_AT = " at "


def existing_entries(stores: Stores) -> list[PostalEntry]:
    """The entries of the quarantine. Creates no table."""
    records = stores.existing_records(POSTAL_QUARANTINE)
    return [] if records is None else list(PostalQuarantineTable(records).list())


def require_same(stores: Stores) -> None:
    """Raises ConfigurationDiffers for another Postal than the stored one. Creates no table."""
    _ = stores.postal  # names the setting that is missing
    locks = stores.existing_records(LOCKS)
    stored = None if locks is None else Locks(locks).holder(NAME)
    if stored is not None and stored != (now := _own_name(stores)):
        _require(stores, stored, now)


def agree(stores: Stores) -> None:
    """As `require_same`, and stores this Postal's name. The caller holds the duty's lock."""
    locks, now = stores.records.locks, _own_name(stores)
    stored = locks.first(NAME, now)
    if stored != now:
        _require(stores, stored, now)
        locks.change(NAME, stored, now)


def _own_name(stores: Stores) -> str:
    main = stores.postal.main
    ((host, port),) = main.rows("SELECT @@hostname, @@port")
    return f"{main.url.database}{_AT}{host}:{port}"


def _require(stores: Stores, stored: str, now: str) -> None:
    of_cassandra, way_out = has_cassandra(stores.settings), ""
    url = stores.postal.main.url
    if stored.rpartition(_AT)[0] == url.database:
        if not of_cassandra and own_url(stores.settings)[0].address == url.address:
            return
        messages = look_up(stores.postal, existing_entries(stores))
        if not messages or any(item.is_proved for item in messages):
            return
        moved = f"DELETE FROM locks WHERE name = '{NAME}' (docs/runbook.md)"
        unasked = next((item.why for item in messages if item.message is None and item.why), None)
        way_out = f"; or, where it is that Postal and has moved: {unasked or moved}"
    where = "MAILSLICE_OWN_KEYSPACE" if of_cassandra else "MAILSLICE_OWN_URL"
    kind = "keyspace" if of_cassandra else "database"
    raise ConfigurationDiffers(
        f"MAILSLICE_POSTAL_URL ({stores.settings.where('MAILSLICE_POSTAL_URL')}) names the Postal "
        f"{now}, and mailslice's own tables are those of the Postal {stored}: its quarantine would "
        f"be taken for this one's. Name another {kind} for this one ({where}){way_out}"
    )
